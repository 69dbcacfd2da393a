"""Decimals as floating-point numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.convert.memory import buffer_view

__all__ = ["decimal_floats"]

_DIGITS_OF_INT64 = 18
_EXACT_POWERS_OF_TEN = 22


def decimal_floats(array: pa.Array) -> npt.NDArray[np.float64]:
    """The nearest float64 of each value, for up to 15 digits; beyond, off by a last bit or so.

    Arrow's own cast multiplies by an inexact power of ten: it makes 99.99000000000001 of 99.99.
    """
    precision, scale = array.type.precision, array.type.scale
    if precision > _DIGITS_OF_INT64 or not 0 <= scale <= _EXACT_POWERS_OF_TEN:
        return buffer_view(array.cast(pa.float64()), np.dtype(np.float64))
    wide = array.cast(pa.decimal128(precision, scale))
    words = buffer_view(wide, np.dtype("V16")).view(np.int64)
    floats: npt.NDArray[np.float64] = words[::2] / 10.0**scale  # the low word holds the value
    return floats
