"""The vocabulary of hardware: YAML architectures and the schema that reads them."""
