"""Element types: their size and their numpy representation."""

from __future__ import annotations

import ml_dtypes
import numpy as np

_NUMPY: dict[str, np.dtype] = {
    "fp32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp16": np.dtype(np.float16),
    "fp8e4": np.dtype(ml_dtypes.float8_e4m3),
    "fp8e5": np.dtype(ml_dtypes.float8_e5m2),
    "int8": np.dtype(np.int8),
    "int32": np.dtype(np.int32),
}
_BYTES = {name: dtype.itemsize for name, dtype in _NUMPY.items()}


def dtype_bytes(dtype: str) -> int:
    """Size of one element in bytes."""
    return _BYTES[dtype]


def numpy_dtype(dtype: str) -> np.dtype:
    """The numpy (or ml_dtypes) type that holds `dtype`."""
    return _NUMPY[dtype]
