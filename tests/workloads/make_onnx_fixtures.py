"""Write the ONNX files that the tests read: run `python tests/workloads/make_onnx_fixtures.py`.

It needs onnx, and onnxruntime for what the outputs should be. Weights are seeded and lie in the files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent / "exported"
RNG = np.random.default_rng(0)


class Writer:
    """Collects nodes and initializers; every method returns the name of a result."""

    def __init__(self):
        self.nodes, self.tensors, self.path = [], [], ""

    def array(self, value, dtype=np.float32):
        name = f"t{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape, scale=0.2):
        return self.array(scale * RNG.standard_normal(shape))

    def ints(self, *values):
        return self.array(values, np.int64)

    def op(self, kind, *inputs, **attributes):
        name = f"{self.path}/{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name


def classifier():
    """Convolutions with all sorts of padding, batch norms, pools, hard swish, a linear layer."""
    w = Writer()
    x = w.op("Conv", "pixels", w.weight(8, 3, 3, 3), w.weight(8), pads=[0, 1, 1, 1], strides=[2, 2])
    gain, beta, mean = (w.weight(8) for _ in range(3))
    x = w.op("BatchNormalization", x, gain, beta, mean, w.array(0.5 + RNG.random(8)))
    x = w.op("HardSwish", x)
    x = w.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = w.op("Conv", x, w.weight(8, 1, 3, 3), group=8, auto_pad="SAME_UPPER")
    x = w.op("Clip", w.op("Add", x, y), w.array(-1.0), w.array(6.0))
    scale = w.op("HardSigmoid", w.op("Conv", w.op("GlobalAveragePool", x), w.weight(8, 8, 1, 1)), alpha=0.2)
    x = w.op("Mul", x, scale)
    x = w.op(
        "Flatten", w.op("GlobalAveragePool", w.op("AveragePool", x, kernel_shape=[2, 2], strides=[1, 1]))
    )
    x = w.op("Gemm", x, w.weight(5, 8), w.weight(5), transB=1)
    return w, w.op("Softmax", x, axis=-1), [("pixels", TensorProto.FLOAT, [2, 3, 13, 13])]


def encoder(layers=3, width=24, heads=3):
    """Token ids of any number, a mask from their count, attention spelled out, gelu by erf."""
    w = Writer()
    seq = w.op("Gather", w.op("Shape", "ids"), w.array(1, np.int64), axis=0)
    at = w.op("Range", w.array(0, np.int64), seq, w.array(1, np.int64))
    hidden = w.op("Greater", w.op("Unsqueeze", at, w.ints(0)), w.op("Unsqueeze", at, w.ints(1)))
    mask = w.op("Where", hidden, w.array(-np.inf), w.array(0.0))
    x = w.op("Gather", w.weight(40, width, scale=1.0), "ids", axis=0)
    for i in range(layers):
        w.path = f"/layers.{i}"
        y = w.op("LayerNormalization", x, w.weight(width, scale=1.0), w.weight(width), axis=-1)
        q, k, v = (_heads(w, y, heads, order) for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scaled = w.op("Div", w.op("MatMul", q, k), w.array(np.sqrt(width / heads)))
        weights = w.op("Softmax", w.op("Add", scaled, mask), axis=-1)
        mixed = w.op("Transpose", w.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        flat = w.op("Reshape", mixed, w.ints(0, 0, -1))
        x = w.op("Add", x, w.op("MatMul", flat, w.weight(width, width)))
        y = w.op("MatMul", x, w.weight(width, 2 * width))
        erf = w.op("Erf", w.op("Div", y, w.array(np.sqrt(2.0))))
        y = w.op("Mul", w.op("Mul", y, w.op("Add", erf, w.array(1.0))), w.array(0.5))
        x = w.op("Add", x, w.op("MatMul", y, w.weight(2 * width, width)))
    return w, x, [("ids", TensorProto.INT64, ["batch", "seq"])]


def _heads(w, y, heads, order):
    width = 24
    flat = w.op("Add", w.op("MatMul", y, w.weight(width, width)), w.weight(width))
    return w.op("Transpose", w.op("Reshape", flat, w.ints(0, 0, heads, width // heads)), perm=order)


def save(name, rank, built, feeds):
    writer, result, inputs = built
    graph = helper.make_graph(
        writer.nodes,
        name,
        [helper.make_tensor_value_info(n, kind, shape) for n, kind, shape in inputs],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, [None] * rank)],
        writer.tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    (HERE / f"{name}.onnx").write_bytes(model.SerializeToString())
    (out,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    np.savez_compressed(HERE / f"{name}.onnx.npz", out=out, **feeds)


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    save("conv_net", 2, classifier(), {"pixels": RNG.standard_normal((2, 3, 13, 13)).astype(np.float32)})
    save("encoder", 3, encoder(), {"ids": RNG.integers(0, 40, (2, 9))})
