"""Random tables of random types: the batches hold the values that Arrow holds."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from hypothesis import Phase, given, reject, settings
from hypothesis import strategies as st

from headrace.convert import Converter, concat
from headrace.errors import ConversionError

INTEGERS = [pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
NUMBERS = [*INTEGERS, pa.bool_(), pa.float32(), pa.float64(), pa.dictionary(pa.int8(), pa.int64())]
OBJECTS = [pa.string(), pa.binary(), pa.large_string(), pa.dictionary(pa.int16(), pa.string())]

# Shrinking tables takes minutes, and failing examples are small enough to read as they are.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]

numbers = st.sampled_from(NUMBERS)
arrays = st.recursive(numbers, lambda t: st.builds(pa.list_, t, st.integers(0, 3)), max_leaves=2)
ragged = st.builds(lambda kind, t: kind(t), st.sampled_from([pa.list_, pa.large_list]), arrays)
lists = st.builds(pa.list_, st.sampled_from(OBJECTS))
plain = st.one_of(numbers, arrays, ragged, st.sampled_from(OBJECTS), lists)
types = st.recursive(
    plain,
    lambda t: st.lists(t, max_size=3).map(
        lambda ts: pa.struct({f"f{i}": x for i, x in enumerate(ts)})
    ),
    max_leaves=4,
)


def _values(type_: pa.DataType, nulls: bool) -> st.SearchStrategy[Any]:
    """Return values of a type. Lists of any length hold no nulls, because masks mark only rows."""
    if pt.is_dictionary(type_):
        return _values(type_.value_type, nulls)
    if pt.is_struct(type_):
        values = st.fixed_dictionaries({f.name: _values(f.type, nulls) for f in type_})
    elif pt.is_fixed_size_list(type_):
        size = type_.list_size
        values = st.lists(_values(type_.value_type, nulls), min_size=size, max_size=size)
    elif pt.is_list(type_) or pt.is_large_list(type_):
        values = st.lists(_values(type_.value_type, False), max_size=4)
    else:
        values = _scalars(type_)
    return st.none() | values if nulls else values


def _scalars(type_: pa.DataType) -> st.SearchStrategy[Any]:
    if pt.is_integer(type_):
        limits = np.iinfo(str(type_))
        return st.integers(int(limits.min), min(int(limits.max), 2**63 - 1))
    if pt.is_floating(type_):
        return st.floats(width=type_.bit_width)
    if pt.is_boolean(type_):
        return st.booleans()
    return st.binary(max_size=20) if pt.is_binary(type_) else st.text(max_size=20)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Draw columns of one to several chunks, each a slice of a longer array."""
    fields = draw(st.lists(types, min_size=1, max_size=4))
    schema = pa.schema([(f"c{i}", type_) for i, type_ in enumerate(fields)])
    nulls = draw(st.booleans())
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    columns = []
    for type_ in schema.types:
        rows = st.lists(_values(type_, nulls), min_size=8, max_size=8)
        chunks = [pa.array(draw(rows), type_).slice(draw(st.integers(0, 3)), n) for n in lengths]
        columns.append(pa.chunked_array(chunks, type_))
    return pa.Table.from_arrays(columns, schema=schema)


def _expected(type_: pa.DataType, value: Any) -> Any:
    """Return a value of ``to_pylist`` as it is under a mask."""
    if pt.is_dictionary(type_):
        return _expected(type_.value_type, value)
    if pt.is_struct(type_):
        row = value or {}
        return {f.name: _expected(f.type, row.get(f.name)) for f in type_}
    if pt.is_fixed_size_list(type_):
        return [_expected(type_.value_type, v) for v in value or [None] * type_.list_size]
    if pt.is_list(type_) or pt.is_large_list(type_):
        return [_expected(type_.value_type, v) for v in value or []]
    if value is None:
        return "NaN" if pt.is_floating(type_) else _zero(type_)
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _zero(type_: pa.DataType) -> Any:
    if pt.is_boolean(type_):
        return False
    if pt.is_integer(type_):
        return 0
    return b"" if pt.is_binary(type_) else ""


def _rows(column: Any) -> Iterator[Any]:
    """Yield the rows of a batch's column as ``_expected`` returns them, without masks of fields."""
    if isinstance(column, dict):
        inner = {k: list(_rows(v)) for k, v in column.items() if not k.endswith("_mask")}
        count = len(next(iter(inner.values()), []))
        yield from ({k: v[i] for k, v in inner.items()} for i in range(count))
    elif isinstance(column, list) or column.dtype == object:
        yield from (_named(row.tolist() if hasattr(row, "tolist") else row) for row in column)
    else:
        yield from map(_named, column.tolist())


def _named(value: Any) -> Any:
    if isinstance(value, list):
        return [_named(v) for v in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _mask_of(type_: pa.DataType, value: Any) -> Any:
    """Return one mask value for each value of a fixed-size list, otherwise one for the row."""
    if pt.is_fixed_size_list(type_):
        return [_mask_of(type_.value_type, v) for v in value or [None] * type_.list_size]
    return value is None


@settings(max_examples=150, deadline=None, phases=PHASES)
@given(
    table=tables(),
    fmt=st.sampled_from(["torch", "numpy"]),
    batch_size=st.integers(1, 9),
    data=st.data(),
)
def test_batches_hold_the_values_of_the_table(
    table: pa.Table, fmt: str, batch_size: int, data: st.DataObject
) -> None:
    block = Converter(table.schema, fmt, nulls="mask").convert(table)
    rows = np.arange(table.num_rows)
    pieces, indices = [block.slice(0, 0)], [rows[:0]]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, table.num_rows))
        length = data.draw(st.integers(0, table.num_rows - start))
        order = np.array(data.draw(st.permutations(range(length))), np.int64)
        piece, index = block.slice(start, length), rows[start : start + length]
        if data.draw(st.booleans()):
            piece, index = piece.take(order), index[order]
        pieces.append(piece)
        indices.append(index)
    joined, wanted = concat(pieces), np.concatenate(indices)
    assert joined.num_rows == len(wanted)
    batches = list(joined.batches(batch_size))
    assert len(batches) == -(-len(wanted) // batch_size)
    for field in table.schema:
        values = [table[field.name].to_pylist()[i] for i in wanted]
        _check_column(batches, field, values, batch_size)


def _check_column(batches: list[Any], field: pa.Field, values: list[Any], size: int) -> None:
    for i, batch in enumerate(batches):
        expected = values[i * size : (i + 1) * size]
        if not _without_leaves(field.type):
            assert list(_rows(batch[field.name])) == [_expected(field.type, v) for v in expected]
        mask = batch[f"{field.name}_mask"].tolist()
        assert mask == [_mask_of(field.type, v) for v in expected]


def _without_leaves(type_: pa.DataType) -> bool:
    """Return True if a struct, or one inside it, has no fields and so no row count."""
    return pt.is_struct(type_) and (
        type_.num_fields == 0 or any(_without_leaves(field.type) for field in type_)
    )


@settings(max_examples=60, deadline=None, phases=PHASES)
@given(table=tables(), fmt=st.sampled_from(["arrow", "dict"]), batch_size=st.integers(1, 9))
def test_arrow_and_python_batches_hold_the_table(
    table: pa.Table, fmt: str, batch_size: int
) -> None:
    block = Converter(table.schema, fmt).convert(table)
    try:
        got = [b if fmt == "dict" else b.to_pydict() for b in block.batches(batch_size)]
    except ConversionError as error:
        if "requires a larger index type" not in str(error):  # for dictionaries of two chunks
            raise
        reject()
    for name in table.schema.names:
        values = [value for batch in got for value in batch[name]]
        assert str(values) == str(table[name].to_pylist())
