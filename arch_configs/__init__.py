"""The vocabulary of hardware: YAML architectures and the schema that reads them."""

from arch_configs.describe import derived, describe, json_schema, resolve_text
from arch_configs.load import ArchError, list_archs, load_arch, load_arch_text
from arch_configs.spec import ArchSpec

__all__ = [
    "ArchError",
    "ArchSpec",
    "derived",
    "describe",
    "json_schema",
    "list_archs",
    "load_arch",
    "load_arch_text",
    "resolve_text",
]
