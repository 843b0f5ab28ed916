"""Commands by theme; `dse.cli` puts them together. Imports inside them keep `dse --help` fast."""
