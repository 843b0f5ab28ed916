"""ONNX files: what the importer needs of them, read with the `onnx` package (extra `onnx`)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.ops.base import Array
from workloads.errors import WorkloadError

if TYPE_CHECKING:
    from types import ModuleType

# onnx.TensorProto.DataType
DTYPES = {
    1: "fp32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "fp16", 11: "fp64",
    16: "bf16",
}  # fmt: skip
Attribute = int | float | str | list[int] | list[float] | Array | None


@dataclass(frozen=True, slots=True)
class Tensor:
    """An initializer: shape, type, and the array unless it lies in another file that is not there."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    array: Array | None


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One node of the graph."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]
    path: str


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A graph; dimensions of inputs are numbers or names."""

    nodes: tuple[OnnxNode, ...]
    tensors: Mapping[str, Tensor]
    inputs: Mapping[str, tuple[tuple[int | str, ...], str]]
    outputs: tuple[str, ...]
    opset: int
    indices: Mapping[str, tuple[int, ...]]  # shapes of whole-number and boolean values, where they are known


def read_model(path: Path) -> OnnxModel:
    """The model at `path`. Raises WorkloadError."""
    onnx = _package()
    try:
        found = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # the package raises what its protobuf library does
        raise WorkloadError(f"{path}: not an ONNX model: {error}") from error
    if not found.graph.node:
        raise WorkloadError(f"{path}: not an ONNX model: got a graph without nodes")
    graph = found.graph
    tensors = {t.name: _tensor(onnx, t, path) for t in graph.initializer}
    opset = next((o.version for o in found.opset_import if o.domain in ("", "ai.onnx")), 0)
    inputs = {i.name: _input(i) for i in graph.input if i.name not in tensors}
    nodes = tuple(_node(onnx, n, i, path) for i, n in enumerate(graph.node))
    return OnnxModel(
        nodes, tensors, inputs, tuple(o.name for o in graph.output), opset, _indices(onnx, found)
    )


def _indices(onnx: ModuleType, found: Any) -> dict[str, tuple[int, ...]]:
    """What shape inference says of values that are no floats; nothing where it fails."""
    try:
        inferred = onnx.shape_inference.infer_shapes(found, data_prop=True)
    except Exception:  # the package raises what its protobuf library does
        return {}
    shapes = {}
    for info in inferred.graph.value_info:
        dims, dtype = _input(info)
        if dtype not in ("fp32", "bf16", "fp16", "fp64") and all(isinstance(d, int) for d in dims):
            shapes[info.name] = tuple(int(d) for d in dims)
    return shapes


def _package() -> ModuleType:
    try:
        return import_module("onnx")  # an extra: only who reads such files needs it
    except ImportError as error:
        raise WorkloadError("ONNX files need the package onnx: pip install 'accel-dse[onnx]'") from error


def _tensor(onnx: ModuleType, proto: Any, path: Path) -> Tensor:
    dtype = DTYPES.get(proto.data_type, f"type {proto.data_type}")
    external = proto.data_location == onnx.TensorProto.EXTERNAL
    array = None
    if not external:
        array = onnx.numpy_helper.to_array(proto)
    elif all((path.parent / e.value).is_file() for e in proto.external_data if e.key == "location"):
        onnx.external_data_helper.load_external_data_for_tensor(proto, str(path.parent))
        array = onnx.numpy_helper.to_array(proto)
    return Tensor(proto.name, tuple(proto.dims), dtype, array)


def _input(proto: Any) -> tuple[tuple[int | str, ...], str]:
    kind = proto.type.tensor_type
    dims = tuple(_size(d, f"{proto.name}_{i}") for i, d in enumerate(kind.shape.dim))
    return dims, DTYPES.get(kind.elem_type, f"type {kind.elem_type}")


def _size(dim: Any, name: str) -> int | str:
    """A number, or the name of what is not fixed: its own, else that of its place."""
    if dim.HasField("dim_value") and dim.dim_value > 0:
        return int(dim.dim_value)
    return str(dim.dim_param) if dim.dim_param.isidentifier() else name


def _node(onnx: ModuleType, proto: Any, number: int, path: Path) -> OnnxNode:
    attributes: dict[str, Attribute] = {}
    for attribute in proto.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.type == onnx.AttributeProto.TENSOR:
            value = _tensor(onnx, value, path).array
        elif isinstance(value, bytes):
            value = value.decode()
        elif not isinstance(value, (int, float)):
            value = [v.decode() if isinstance(v, bytes) else v for v in value] if _is_plain(value) else None
        attributes[attribute.name] = value
    name = proto.name or (proto.output[0] if proto.output else f"node{number}")
    return OnnxNode(
        proto.op_type, name, tuple(proto.input), tuple(proto.output), attributes, _module_path(proto, name)
    )


def _is_plain(value: object) -> bool:
    return isinstance(value, (list, tuple)) or hasattr(value, "__len__")


def _module_path(proto: Any, name: str) -> str:
    """The module a node came from: what torch writes down, else the slashes of its name."""
    for prop in proto.metadata_props:
        if prop.key == "pkg.torch.onnx.name_scopes":
            scopes = [str(s) for s in ast.literal_eval(prop.value) if s]
            return max((s for s in scopes[:-1]), key=len, default="")
    return name.strip("/").rpartition("/")[0].replace("/", ".")


def int_list(value: Attribute | Array) -> list[int]:
    """Whole numbers of an attribute or array."""
    return [int(v) for v in np.asarray(value).reshape(-1)]
