"""The resolved form of an architecture, what follows from it, and the schema for editors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import get_args

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from arch_configs.document import scalar
from arch_configs.load import SCHEMA_VERSION
from arch_configs.spec import DTYPES, ArchSpec
from arch_configs.units import (
    BYTES,
    BYTES_PER_SECOND,
    HERTZ,
    PICOSECONDS,
    Bytes,
    BytesPerSecond,
    Hertz,
    Picoseconds,
    format_quantity,
)

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

# A quantity is known by the validator in its annotation.
_UNITS = tuple(
    (get_args(kind)[1], units)
    for kind, units in (
        (Bytes, BYTES),
        (BytesPerSecond, BYTES_PER_SECOND),
        (Hertz, HERTZ),
        (Picoseconds, PICOSECONDS),
    )
)


class _Dumper(yaml.SafeDumper):
    """Writes the subset of YAML that our reader takes."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    plain = scalar(value) == value and value.strip() == value
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else "'")


_Dumper.add_representer(str, _text)


def resolve_text(spec: ArchSpec) -> str:
    """`spec` as a complete YAML file: `load_arch` of this text gives an equal spec."""
    return yaml.dump(_model(spec), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=10_000)


def _model(spec: BaseModel) -> dict[str, Json]:
    """The fields as they would stand in a file; what is absent is left out."""
    return {
        name: _value(getattr(spec, name), _units(field))
        for name, field in type(spec).model_fields.items()
        if getattr(spec, name) is not None
    }


def _units(field: FieldInfo) -> Mapping[str, int] | None:
    marks = [*field.metadata, *(mark for option in get_args(field.annotation) for mark in get_args(option))]
    return next((units for mark, units in _UNITS if mark in marks), None)


def _value(value: object, units: Mapping[str, int] | None) -> Json:
    if isinstance(value, BaseModel):
        return _model(value)
    if isinstance(value, dict):
        return {str(key): _value(item, None) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_value(item, None) for item in value]
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else str(value)
    if units is not None and isinstance(value, int):
        return format_quantity(value, units)
    assert isinstance(value, (bool, int, float, str)), value
    return value


def derived(spec: ArchSpec) -> dict[str, Json]:
    """What follows from the numbers of `spec`: plain data, the unit in each key."""
    array = spec.array
    on_chip = [name for name, memory in spec.memories.items() if memory.kind != "dram"]
    peaks = _peaks(spec)
    dma = spec.dma_bandwidth
    return {
        "array_rows": array.rows,
        "array_cols": array.cols,
        "array_units": array.units,
        "processing_elements": array.rows * array.cols * array.units,
        "peak_flops_per_s": peaks,
        "flops_per_dram_byte": {dtype: round(peak / spec.dram_bandwidth, 2) for dtype, peak in peaks.items()},
        "vector_elements_per_s": {
            name: int(min(engine.lanes, spec.partitions(spec.scratchpad)) * engine.clock)
            for name, engine in spec.vectors.items()
        },
        "on_chip_bytes": sum(spec.memories[name].capacity for name in on_chip),
        "partitions": {name: spec.partitions(name) for name in on_chip},
        "partition_bytes": {name: spec.partition_bytes(name) for name in on_chip},
        "accumulator_bank_bytes": spec.bank_bytes(spec.accumulator),
        "dram_bytes": spec.memories[spec.dram].capacity,
        "dram_usable_bytes": spec.memories[spec.dram].capacity - spec.memories[spec.dram].reserved,
        "dram_bytes_per_s": spec.dram_bandwidth,
        "dma_bytes_per_s": dma,
        "dma_queue_bytes_per_s": min(spec.dma.queue_bandwidth or dma, dma),
        "chips": math.prod(spec.mesh.axes.values()) if spec.mesh else 1,
        "cores_per_chip": spec.cores,
    }


def _peaks(spec: ArchSpec) -> dict[str, int]:
    """FLOP/s by dtype, in the order of DTYPES."""
    return {str(dtype): spec.peak_flops(dtype) for dtype in DTYPES if dtype in spec.array.passes}


def describe(spec: ArchSpec) -> str:
    """The resolved form and, below it as comments, what follows from it; for `dse check`."""
    rows = [("array", _array_text(spec))]
    rows += [
        (f"peak {dtype}", f"{peak / 1e12:.2f} TFLOPS, {peak / spec.dram_bandwidth:.1f} FLOP per DRAM byte")
        for dtype, peak in _peaks(spec).items()
    ]
    rows += [(name, _memory_text(spec, name)) for name in spec.memories]
    on_chip = sum(memory.capacity for memory in spec.memories.values() if memory.kind != "dram")
    rows.append(("on chip", f"{on_chip / 2**20:.2f} MiB in all"))
    dma = spec.dma_bandwidth
    queue = min(spec.dma.queue_bandwidth or dma, dma)
    speeds = (format_quantity(rate, BYTES_PER_SECOND) for rate in (dma, queue))
    rows.append(("dma", "{}, one queue {}".format(*speeds)))
    width = max(len(name) for name, _ in rows)
    facts = "".join(f"# {name:<{width}}  {text}\n" for name, text in rows)
    return f"{resolve_text(spec)}\n# derived\n{facts}"


def _array_text(spec: ArchSpec) -> str:
    array = spec.array
    units = f" x {array.units}" if array.units > 1 else ""
    count = array.rows * array.cols * array.units
    return f"{array.rows} x {array.cols}{units} = {count:,} PEs at {format_quantity(array.clock, HERTZ)}"


def _memory_text(spec: ArchSpec, name: str) -> str:
    memory = spec.memories[name]
    size = format_quantity(memory.capacity, BYTES)
    if memory.kind == "dram":
        return f"{size} at {format_quantity(spec.dram_bandwidth, BYTES_PER_SECOND)}"
    part = format_quantity(spec.partition_bytes(name), BYTES)
    text = f"{size}: {spec.partitions(name)} partitions x {part}"
    if memory.kind == "scratchpad":
        return text
    return f"{text}, {memory.banks} banks x {format_quantity(spec.bank_bytes(name), BYTES)}"


def json_schema() -> dict[str, Json]:
    """JSON Schema of an architecture file, for editors.

    No key is required, because a file that extends another leaves out what it inherits; and every value
    may be null, which removes what is inherited.
    """
    schema = ArchSpec.model_json_schema()
    properties = schema["properties"]
    properties["extends"] = {"type": "string", "description": "name of an architecture, or a relative path"}
    properties["schema"] = {"const": SCHEMA_VERSION, "description": "version of this format"}
    costs = schema["$defs"]["VectorCost"]
    schema["$defs"]["VectorCost"] = {"anyOf": [{"type": ["number", "string"]}, costs]}
    loose = _loosened(schema)
    assert isinstance(loose, dict), loose
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **loose}


def _loosened(part: Json) -> Json:
    """`part` without required keys and with null allowed; engines match any kind, as `kind` may be absent."""
    if isinstance(part, list):
        return [_loosened(item) for item in part]
    if not isinstance(part, dict):
        return part
    loose = {key: _loosened(value) for key, value in part.items() if key not in ("required", "discriminator")}
    properties, others = loose.get("properties"), loose.get("additionalProperties")
    if isinstance(properties, dict):
        loose["properties"] = {key: _or_null(value) for key, value in properties.items()}
    if isinstance(others, dict):
        loose["additionalProperties"] = _or_null(others)
    if "oneOf" in loose:
        loose["anyOf"] = loose.pop("oneOf")
    return loose


def _or_null(part: Json) -> Json:
    return {"anyOf": [part, {"type": "null"}]}
