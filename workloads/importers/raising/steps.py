"""What a sum or a product is the last step of, in formats that spell models out alike (ONNX, torch)."""

from __future__ import annotations

from workloads.importers.flat import FlatGraph, Known
from workloads.importers.raising.activations import activation
from workloads.importers.raising.norms import rms_norm
from workloads.importers.raising.tokens import assembled


def raised_sum(flat: FlatGraph, name: str, lhs: Known, rhs: Known) -> Known | None:
    """`lhs + rhs` as the tokens of an image with their positions, if it is that."""
    for x, other in ((lhs, rhs), (rhs, lhs)):
        tokens = assembled(flat, name, x, other)
        if tokens is not None:
            return tokens
    return None


def raised_product(flat: FlatGraph, name: str, lhs: Known, rhs: Known) -> Known | None:
    """`lhs * rhs` as a norm with its gain, or as an activation, if it is one."""
    for gain, y in ((lhs, rhs), (rhs, lhs)):
        normed = rms_norm(flat, name, gain, y)
        if normed is not None:
            return normed
    return activation(flat, name, lhs, rhs)
