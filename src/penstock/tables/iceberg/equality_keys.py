"""The values by which equality deletes delete, and which rows have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import Int64Array

__all__ = ["EqualityKeys", "stored_type", "without_extension"]


@dataclass(frozen=True, slots=True, eq=False)
class EqualityKeys:
    """Rows of values, encoded column by column so that rows of a table are looked up by hashing.

    Null is equal to null. Of floating-point numbers, which the specification does not allow here,
    what the Java implementation makes of them: all NaN are equal, and the two zeros are not.
    """

    values: tuple[pa.Array, ...]
    """the distinct values of each column"""
    combinations: tuple[pa.Array, ...]
    """for each column but the first, the pairs that occur of what was found before it (its place
    among the combinations) and its value (its place), as one number"""

    @classmethod
    def of(cls, columns: Sequence[pa.ChunkedArray]) -> EqualityKeys:
        """From columns of the types that ``stored_type`` gives."""
        distinct: list[pa.Array] = []
        combinations: list[pa.Array] = []
        found = np.empty(0, np.int64)
        for column in map(_comparable, columns):
            distinct.append(pc.unique(column))
            places = _places(column, distinct[-1])
            if len(distinct) > 1:
                pairs = pa.array(found * len(distinct[-1]) + places)
                combinations.append(pc.unique(pairs))
                places = _places(pairs, combinations[-1])
            found = places
        return cls(tuple(distinct), tuple(combinations))

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.values, *self.combinations))

    def matches(self, columns: Sequence[pa.ChunkedArray]) -> npt.NDArray[np.bool_]:
        """Which rows have the values of one of the keys. Columns are in the order of the keys'."""
        first = _places(_comparable(columns[0]), self.values[0])
        rows = np.flatnonzero(first >= 0)
        found = first[rows]
        for column, values, pairs in zip(
            columns[1:], self.values[1:], self.combinations, strict=True
        ):
            places = _places(_comparable(column.take(pa.array(rows))), values)
            both = places >= 0
            numbers = _places(pa.array(found[both] * len(values) + places[both]), pairs)
            rows, found = rows[both][numbers >= 0], numbers[numbers >= 0]
        matching = np.zeros(len(first), bool)
        matching[rows] = True
        return matching


def stored_type(type_: pa.DataType) -> pa.DataType:
    """The type in which keys are compared with a column of a table."""
    if isinstance(type_, pa.BaseExtensionType):
        return stored_type(type_.storage_type)
    return stored_type(type_.value_type) if pa.types.is_dictionary(type_) else type_


def without_extension(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as it is stored: a UUID is sixteen bytes."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column that can be hashed; floating-point numbers by their bits."""
    column = without_extension(column).cast(stored_type(column.type))
    if not pa.types.is_floating(column.type):
        return column
    one_nan = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width]
    return pa.chunked_array([chunk.view(bits) for chunk in one_nan.chunks], bits)


def _places(column: pa.ChunkedArray | pa.Array, values: pa.Array) -> Int64Array:
    """Where each value stands among ``values``; -1 where it does not."""
    places = pc.fill_null(pc.index_in(column, value_set=values), -1).to_numpy()
    return np.asarray(places, np.int64)
