"""The options ``stack=`` and ``cast=``: columns that become one tensor, and number types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import torch

from headrace.convert.columns import Column, DenseColumn, StructColumn
from headrace.convert.memory import block_memory
from headrace.errors import ConversionError, OptionError, SchemaError, near_names

Dtype = np.dtype[Any]


class _Numeric:
    """Stands for all columns of integers, floats and decimals."""

    def __repr__(self) -> str:
        return "NUMERIC"

    def __reduce__(self) -> str:
        return "NUMERIC"


NUMERIC: Final = _Numeric()
"""All columns of integers, floats and decimals, in ``stack=``."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Columns that become one array of shape [rows, columns].

    Attributes:
        key: The key of the array.
        columns: The keys of the columns.
        masks: The keys of their masks; None for a column that has none.
        dtype: The number type of the array.
    """

    key: str
    columns: tuple[str, ...]
    masks: tuple[str | None, ...]
    dtype: Dtype

    @property
    def keys(self) -> tuple[str, ...]:
        """The key of the array, and the key of its mask if it has one."""
        return (self.key, f"{self.key}_mask") if any(self.masks) else (self.key,)


def stacked(block: StructColumn, stacks: Sequence[Stack]) -> StructColumn:
    """Return a block in which each stack is one column, in place of the columns in it."""
    by_key: dict[str, Any] = dict(zip(block.names, block.columns, strict=True))
    made: dict[str, Column] = {}
    for stack in stacks:
        made[stack.key] = _matrix(
            stack.key, [by_key[name] for name in stack.columns], block, stack.dtype
        )
        if any(stack.masks):
            masks = [None if name is None else by_key[name] for name in stack.masks]
            made[stack.keys[1]] = _matrix(stack.key, masks, block, np.dtype(np.bool_))
    inside = {name for stack in stacks for name in (*stack.columns, *stack.masks)}
    kept = {name: column for name, column in by_key.items() if name not in inside}
    columns = {**kept, **made}
    return StructColumn(tuple(columns), tuple(columns.values()), block.num_rows)


def _matrix(
    key: str, columns: Sequence[DenseColumn | None], block: StructColumn, dtype: Dtype
) -> DenseColumn:
    arrays = [None if column is None else column.array for column in columns]
    for_torch = any(column.for_torch for column in columns if column is not None)
    memory, rows = block_memory.get(), block.num_rows
    by_column = memory.empty((len(columns), rows), dtype)
    with exact_cast(key, dtype):
        for place, values in enumerate(arrays):
            by_column[place] = False if values is None else values
    matrix = memory.empty((rows, len(columns)), dtype)
    matrix[...] = by_column.T  # one call, because filling column by column is slower
    return DenseColumn.of(matrix, for_torch)


@contextmanager
def exact_cast(key: str, dtype: Dtype) -> Iterator[None]:
    """Raise a ConversionError if the context casts floats to integers that cannot hold them."""
    try:
        with np.errstate(invalid="raise"):
            yield
    except FloatingPointError as error:
        raise ConversionError(
            f"{key!r} holds values that {dtype} has no place for, such as nulls, NaN or very large "
            "ones: fill nulls (nulls=), or choose a type of floats in cast="
        ) from error


def parse_stacks(stack: object, schema: pa.Schema) -> dict[str, list[str]]:
    """Return the columns of each stack, in the order in which they are stacked.

    Args:
        stack: By the key of each stack, names or patterns of columns, ``NUMERIC``, or a list of
            these; a pattern that begins with ``!`` takes columns out again.
        schema: The columns that are read.

    >>> schema = pa.schema({"f0": pa.int8(), "f1": pa.int8(), "y": pa.int8()})
    >>> parse_stacks({"x": "f*", "all": [NUMERIC, "!y"]}, schema)
    {'x': ['f0', 'f1'], 'all': ['f0', 'f1']}
    """
    if not isinstance(stack, Mapping):
        raise OptionError(
            'stack must map a key to names of columns, such as {"x": ["f0", "f1"]}, '
            f"not {stack!r}"
        )
    stacks = {}
    for key, chosen in stack.items():
        patterns = [chosen] if isinstance(chosen, str | _Numeric) else chosen
        if not isinstance(key, str) or not isinstance(patterns, Sequence):
            raise OptionError(f"stack={{{key!r}: {chosen!r}}}: give names of columns under a name")
        stacks[key] = _matching(key, patterns, schema)
    return stacks


def _matching(key: str, patterns: Sequence[Any], schema: pa.Schema) -> list[str]:
    names: dict[str, None] = {}
    for pattern in patterns:
        if isinstance(pattern, _Numeric):
            names |= dict.fromkeys(field.name for field in schema if _is_numeric(field.type))
            continue
        if not isinstance(pattern, str):
            raise OptionError(f"stack={{{key!r}: ...}} takes names of columns, not {pattern!r}")
        # A name means the column of this name, even if it looks like a pattern.
        takes_out = pattern.startswith("!") and pattern not in schema.names
        wanted = pattern.removeprefix("!") if takes_out else pattern
        found = [wanted] if wanted in schema.names else None
        found = found or [name for name in schema.names if fnmatchcase(name, wanted)]
        if not found:
            hint = near_names(wanted, schema.names)
            raise SchemaError(
                f"stack={{{key!r}: ...}}: no column that is read matches {pattern!r}; {hint}"
            )
        if takes_out:
            names = {name: None for name in names if name not in found}
        else:
            names |= dict.fromkeys(found)
    if not names:
        raise SchemaError(f"stack={{{key!r}: {list(patterns)!r}}} chooses no column")
    return list(names)


def _is_numeric(type_: pa.DataType) -> bool:
    return bool(pt.is_integer(type_) or pt.is_floating(type_) or pt.is_decimal(type_))


_TORCH_TYPES = frozenset(map(np.dtype, ("?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8")))
"""Number types with which torch can do everything that batches need."""


def parse_casts(cast: object, stacks: Mapping[str, Any], for_torch: bool) -> dict[str, Dtype]:
    """Return the number type of each key that has one.

    Args:
        cast: A number type for all stacks, or number types by key.
        stacks: The stacks by key.
        for_torch: True if they become tensors.
    """
    if isinstance(cast, Mapping):
        return {str(key): _dtype(value, for_torch) for key, value in cast.items()}
    if not stacks:
        raise OptionError(
            f"cast={cast!r} is for the columns of stack=, which is not given; name columns: "
            'cast={"column": "float32"}'
        )
    return dict.fromkeys(stacks, _dtype(cast, for_torch))


def _dtype(value: object, for_torch: bool) -> Dtype:
    if value is None:
        raise OptionError("cast: None is no number type; leave the key out")
    given = value
    try:
        if isinstance(value, torch.dtype):
            value = torch.empty(0, dtype=value).numpy().dtype
        dtype: Dtype = np.dtype(value)  # type: ignore[call-overload]
    except TypeError as error:
        raise OptionError(f"cast: {given!r} is no number type that numpy has: {error}") from error
    if dtype.kind not in "biuf" or not dtype.isnative:
        raise OptionError(f"cast: {given!r} is no number type; choose one such as float32")
    if for_torch and dtype not in _TORCH_TYPES:
        raise OptionError(f"cast: torch can do little with {dtype}; choose int32, int64 or float32")
    return dtype
