"""ONNX files as workloads, opset 11 to 23; read with the `onnx` package (extra `onnx`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

from typing_extensions import override

from workloads.importers.file_request import FileRequest, check_bound, check_exists
from workloads.importers.flat import FlatGraph, ImportedModel
from workloads.importers.onnx_model import basic, layers, moves
from workloads.importers.onnx_model.reader import OnnxModel, read_model
from workloads.importers.onnx_model.translator import FLOATS, Translation, Translator
from workloads.importers.raising.roll import roll
from workloads.request import Workload

OPERATORS: dict[str, Translation] = {
    **dict.fromkeys(("Identity", "Dropout"), basic.same),
    "Constant": basic.constant,
    "ConstantOfShape": basic.constant_of_shape,
    "Shape": basic.shape_of,
    **{kind: basic.unary(func, known) for kind, func, known in (
        ("Relu", "relu", ""), ("Sigmoid", "sigmoid", ""), ("Tanh", "tanh", "tanh"), ("Exp", "exp", "exp"),
        ("Log", "log", "log"), ("Sqrt", "sqrt", "sqrt"), ("Reciprocal", "reciprocal", "reciprocal"),
        ("Neg", "negate", "negative"), ("Abs", "abs", "abs"), ("Cos", "cos", "cos"), ("Sin", "sin", "sin"),
        ("Erf", "erf", ""), ("Softplus", "softplus", ""), ("Sign", "sign", "sign"),
    )},
    **{kind: basic.binary(func, known) for kind, func, known in (
        ("Sub", "sub", "subtract"), ("Div", "div", "divide"), ("Mod", "mod", "mod"),
    )},
    "Add": basic.add,
    "Mul": basic.mul,
    "Pow": basic.power,
    "Max": basic.variadic("max", "maximum"),
    "Min": basic.variadic("min", "minimum"),
    "Sum": basic.variadic("add", "add"),
    **{kind: basic.comparison(func) for kind, func in (
        ("Equal", "equal"), ("Less", "less"), ("LessOrEqual", "less_equal"), ("Greater", "greater"),
        ("GreaterOrEqual", "greater_equal"), ("And", "logical_and"), ("Or", "logical_or"),
        ("Not", "logical_not"),         ("Floor", "floor"), ("Ceil", "ceil"),
    )},
    "Cast": basic.cast,
    "CastLike": basic.cast,
    "Clip": basic.clip,
    "HardSigmoid": basic.hard_sigmoid,
    "HardSwish": basic.hard_swish,
    "Gelu": basic.gelu,
    "Where": basic.where,
    "IsNaN": basic.is_nan,
    "CumSum": basic.cumsum,
    "GatherND": basic.gather_nd,
    "Reshape": moves.reshape,
    "Flatten": moves.flatten,
    "Unsqueeze": moves.unsqueeze,
    "Squeeze": moves.squeeze,
    "Transpose": moves.transpose,
    "Expand": moves.expand,
    "Tile": moves.tile,
    "Concat": moves.concat,
    "Slice": moves.slice_,
    "Split": moves.split,
    "Gather": moves.gather,
    "Pad": moves.pad,
    "ReduceMean": basic.reduce("mean"),
    "ReduceSum": basic.reduce("add"),
    "ReduceMax": basic.reduce("max"),
    "ReduceMin": basic.reduce("min"),
    "Softmax": basic.softmax,
    "Range": basic.range_,
    "MatMul": layers.matmul,
    "Gemm": layers.gemm,
    "LayerNormalization": layers.layer_norm,
    "RMSNormalization": layers.rms_norm,
    "Attention": layers.attention_node,
    "Conv": layers.conv,
    "BatchNormalization": layers.batch_norm,
    "MaxPool": layers.pool("max"),
    "AveragePool": layers.pool("mean"),
    "GlobalAveragePool": layers.global_average,
    "GlobalMaxPool": layers.global_max,
    "Resize": layers.resize,
    "Upsample": layers.resize,
    "ConvTranspose": layers.conv_transpose,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OnnxRequest(FileRequest):
    """A model file; the sizes that it names can be bound."""

    @override
    def model(self, path: Path, bound: Mapping[str, int], opaque: tuple[str, ...]) -> ImportedModel:
        return import_model(path, bound, opaque)


def import_model(
    path: Path, bound: Mapping[str, int] | None = None, opaque: tuple[str, ...] = ()
) -> ImportedModel:
    """The graph of a file and the weights in it; `bound` gives sizes to named dimensions.

    Raises WorkloadError.
    """
    model, bound = _model(path), bound or {}
    check_bound(
        path, bound, sorted({d for dims, _ in model.inputs.values() for d in dims if isinstance(d, str)})
    )
    flat = FlatGraph(str(path))
    translator = Translator(flat, model, OPERATORS, bound, opaque)
    translator.run()
    outputs = [flat.before_reshape(flat.ref(translator.env[name], "fp32")) for name in model.outputs]
    graph = flat.graph(outputs, _meta(model, flat))
    flat.check(str(path))
    rolled = roll(graph, flat.paths, flat.weights)
    return ImportedModel(rolled.graph, rolled.weights)


@cache
def _model(path: Path) -> OnnxModel:
    return read_model(path)


def _meta(model: OnnxModel, flat: FlatGraph) -> dict[str, int | float | str]:
    """Tokens of the first whole-number input, else images of the first input."""
    for name, (_, dtype) in model.inputs.items():
        if dtype not in FLOATS:
            return {"unit": "tokens", "work": prod(flat.values[name].type.shape)}
    first = next(iter(model.inputs), None)
    return {"unit": "images", "work": flat.values[first].type.shape[0] if first else 1}


def load(path: Path) -> Workload:
    """The workload in a file, called by its path."""
    check_exists(path)
    _model(path)
    return Workload(str(path), f"ONNX model in {path}", (OnnxRequest(str(path)),))
