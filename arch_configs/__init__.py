"""The vocabulary of hardware: YAML architectures and the schema that reads them."""

from arch_configs.load import ArchError, list_archs, load_arch
from arch_configs.spec import ArchSpec

__all__ = ["ArchError", "ArchSpec", "list_archs", "load_arch"]
