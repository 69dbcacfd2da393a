"""Copies out of memory by address, many at a time.

Addresses are counted from the first one that there is for numpy, which takes 0 for none. Nothing
is checked: whoever gives an address knows what is there, and keeps it there.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model import Int64Array

__all__ = ["LONG", "address_of", "bits_at", "copied", "joined", "records", "touch"]

_FIRST_ADDRESS, _ADDRESSES = 1, 2**48
_MEMORY = memoryview((ctypes.c_char * _ADDRESSES).from_address(_FIRST_ADDRESS)).cast("B")
_LARGEST_ARRAY = 2**63 - 1
"""bytes that an array may seem to hold"""
_WIDEST = _LARGEST_ARRAY // _ADDRESSES
LONG = 512
"""bytes from which on finding a place takes longer than asking for it twice"""


def address_of(buffer: pa.Buffer | None) -> int:
    """The address of the first byte, if there is one."""
    return 0 if buffer is None else int(buffer.address) - _FIRST_ADDRESS


class _Memory:
    """All records of one width, one beginning at each byte from an address on."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, count: int, width: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": (count,),
            "strides": (1,),
            "typestr": f"|V{width}",
            "data": (address, True),
        }


@lru_cache(256)
def _all_records(width: int) -> npt.NDArray[Any]:
    """The records that begin at any address that there is."""
    return np.asarray(_Memory(_FIRST_ADDRESS, _ADDRESSES, width))


def records(addresses: Int64Array, width: int) -> npt.NDArray[Any]:
    """The bytes at each of some addresses, so many of each."""
    if width >= LONG:
        touch(addresses + _ends(width))
    return copied(addresses, width)


def copied(addresses: Int64Array, width: int) -> npt.NDArray[Any]:
    """The same where both ends of what is long have been looked at."""
    found: npt.NDArray[Any]
    if width <= _WIDEST:
        found = _all_records(width)[addresses]
        return found
    first = int(addresses.min())
    reach = int(addresses.max()) - first + 1
    if reach * width > _LARGEST_ARRAY:
        return np.frombuffer(_concatenated(addresses, addresses + width), f"|V{width}")
    found = np.asarray(_Memory(first + _FIRST_ADDRESS, reach, width))[addresses - first]
    return found


def joined(
    addresses: Int64Array, starts: Any, lengths: Any, width: int, are_equal: bool
) -> npt.NDArray[Any] | bytearray:
    """The bytes of some spans, one behind the other. Nothing may be nowhere."""
    first = addresses + np.multiply(starts, width, dtype=np.int64)
    if are_equal:
        size = int(lengths[0]) * width
        return records(first, size) if size else bytearray()
    last = first + np.multiply(lengths, width, dtype=np.int64)
    if int(lengths.sum(dtype=np.int64)) * width >= LONG * len(first):
        there = lengths > 0
        touch(np.concatenate([first[there], last[there] - 1]))
    return _concatenated(first, last)


def _concatenated(starts: Int64Array, stops: Int64Array) -> bytearray:
    spans = zip(starts.tolist(), stops.tolist(), strict=True)
    return bytearray().join([_MEMORY[start:stop] for start, stop in spans])


@lru_cache(256)
def _ends(width: int) -> Int64Array:
    """Where the first and the last byte of a record are, below each other."""
    return np.array([[0], [width - 1]])


def touch(ends: Int64Array) -> None:
    """Look at both ends of what is copied next, all at once.

    The processor finds their pages side by side, and while it copies would do so one by one: a
    third of the time that copying takes.
    """
    _all_records(1)[ends]


def bits_at(bits: Int64Array) -> npt.NDArray[np.uint8]:
    """Single bits, by addresses that count bits."""
    holding = records(bits >> 3, 1).view(np.uint8)
    return (holding >> (bits & 7).astype(np.uint8)) & np.uint8(1)
