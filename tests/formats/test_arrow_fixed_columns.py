"""Arrow IPC files of numbers: batches are read end to end, each column in one piece."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc

from penstock import StructuredDataset
from penstock.convert import Converter
from penstock.errors import ReadError, SchemaError
from penstock.formats import ipc_footer, ipc_layout
from penstock.formats.arrow_ipc import ArrowFormat
from penstock.formats.ipc_footer import file_batches
from penstock.formats.ipc_rows import FixedColumns
from penstock.model import DataFileInfo, FileSplit, RowGroups, RowRange
from penstock.storage import LocalStore

STORE = LocalStore()

COLUMNS: dict[str, pa.DataType] = {
    "byte": pa.int8(),
    "half": pa.float16(),
    "float": pa.float32(),
    "long": pa.int64(),
    "day": pa.date32(),
    "time": pa.timestamp("us", "UTC"),
    "price": pa.decimal128(9, 2),
    "hash": pa.binary(5),
    "vector": pa.list_(pa.float32(), 3),
    "matrix": pa.list_(pa.list_(pa.int16(), 2), 3),
    "tensor": pa.fixed_shape_tensor(pa.int16(), [2, 2]),
}


def rows_of(count: int, names: Sequence[str]) -> pa.Table:
    return pa.table({name: _column(COLUMNS[name], count) for name in names})


def _column(type_: pa.DataType, count: int) -> pa.Array:
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, _column(type_.storage_type, count))
    if pa.types.is_fixed_size_list(type_):
        items = _column(type_.value_type, count * type_.list_size)
        return pa.FixedSizeListArray.from_arrays(items, type=type_)
    if pa.types.is_fixed_size_binary(type_):
        return pa.array([b"%05d" % row for row in range(count)], type_)
    if pa.types.is_decimal(type_):
        return pa.array([Decimal(row) / 4 for row in range(count)], type_)
    if pa.types.is_float16(type_):
        return pa.array(np.arange(count, dtype=np.float16) % 1000)
    numbers = pa.array(np.arange(count) % 100 if type_ == pa.int8() else np.arange(count))
    return numbers.cast(pa.int32()).cast(type_) if type_ == pa.date32() else numbers.cast(type_)


def write(path: Path, table: pa.Table, lengths: Sequence[int], **options: Any) -> None:
    with ipc.new_file(path, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        start = 0
        for length in lengths:
            writer.write_table(table.slice(start, length) if length else table.slice(0, 0))
            if not length:
                writer.write_batch(pa.RecordBatch.from_pylist([], schema=table.schema))
            start += length


def look(path: Path) -> DataFileInfo:
    """The file as discovery knows it."""
    status = STORE.status(str(path))
    assert status is not None
    listed = DataFileInfo(str(path), file_size=status.size, etag=status.etag)
    facts = ArrowFormat().inspect(STORE, listed)
    return DataFileInfo(str(path), status.size, facts.record_count, facts.row_groups, status.etag)


def is_divisible(path: Path) -> bool:
    groups = look(path).row_groups
    assert groups is not None
    return bool(len(groups) and groups.divisible.all())


def tables(
    file: DataFileInfo, schema: pa.Schema, rows: RowRange | None = None, block_bytes: int = 1 << 24
) -> list[pa.Table]:
    return list(ArrowFormat().read(STORE, FileSplit(file, rows), schema, block_bytes))


@settings(deadline=None)
@given(data=st.data())
def test_any_rows_of_any_columns(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("ipc") / "a.arrow"
    names = data.draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, unique=True))
    lengths = data.draw(st.lists(st.integers(0, 70), min_size=1, max_size=6))
    whole = rows_of(sum(lengths), names)
    write(path, whole, lengths, **data.draw(st.sampled_from([{}, {"use_legacy_format": True}])))
    file = look(path)
    assert is_divisible(path) == bool(lengths)
    if data.draw(st.booleans()):  # nothing is kept of what was looked at, or known of it
        file = DataFileInfo(file.path, file.file_size, 0 if not lengths else sum(lengths))
    wanted = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    start = data.draw(st.integers(0, sum(lengths)))
    length = data.draw(st.integers(0, sum(lengths) - start))
    schema = pa.schema([whole.schema.field(name) for name in wanted])
    most = data.draw(st.integers(1, 5_000))
    found = tables(file, schema, RowRange(start, length), most)
    row_bytes = sum(_width(field.type) for field in schema)
    assert all(0 < one.num_rows <= max(2 * most // row_bytes, 1) for one in found)
    assert all(column.num_chunks == 1 for one in found for column in one.columns)
    expected = whole.select([name for name in names if name in wanted]).slice(start, length)
    joined = pa.concat_tables(found) if found else expected.slice(0, 0)
    joined.validate(full=True)
    assert joined.equals(expected)


def _width(type_: pa.DataType) -> int:
    if isinstance(type_, pa.BaseExtensionType):
        return _width(type_.storage_type)
    if pa.types.is_fixed_size_list(type_):
        return type_.list_size * _width(type_.value_type)
    return type_.bit_width // 8


def test_which_files_can_be_cut_anywhere(tmp_path: Path) -> None:
    """All others are read batch by batch, and all of them are read."""
    numbers = rows_of(100, ["long", "vector"])
    others: dict[str, pa.Array] = {
        "text": pa.array(map(str, range(100))),
        "null": pa.array([None, *range(99)]),
        "null in list": pa.array([[1, None]] * 100, pa.list_(pa.int64(), 2)),
        "bool": pa.array([True] * 100),
        "list": pa.array([[1]] * 100),
        "struct": pa.array([{"a": 1}] * 100),
        "dictionary": pa.array(["a"] * 100).dictionary_encode(),
        "empty lists": pa.array([[]] * 100, pa.list_(pa.int64(), 0)),
        "nothing": pa.nulls(100),
    }
    write(tmp_path / "a.arrow", numbers, [60, 40])
    assert is_divisible(tmp_path / "a.arrow")
    for name, column in others.items():
        mixed = numbers.append_column(name, column)
        path = tmp_path / f"{name}.arrow"
        write(path, mixed, [60, 40])
        assert not is_divisible(path), name
        found = pa.concat_tables(tables(look(path), mixed.schema, RowRange(30, 50)))
        assert found.equals(mixed.slice(30, 50)), name
    write(tmp_path / "b.arrow", numbers, [60, 40], compression="zstd")
    assert not is_divisible(tmp_path / "b.arrow")


def test_many_columns_in_many_batches(tmp_path: Path) -> None:
    """More pieces than one call of the system takes."""
    whole = pa.table({f"c{i}": np.arange(40) + i for i in range(600)})
    write(tmp_path / "a.arrow", whole, [4] * 10)
    (found,) = tables(look(tmp_path / "a.arrow"), whole.schema)
    assert found.equals(whole)
    few = pa.schema([whole.schema.field(i) for i in (0, 300, 301, 599)])
    (found,) = tables(look(tmp_path / "a.arrow"), few, RowRange(3, 30))
    assert found.equals(whole.select(few.names).slice(3, 30))


def test_tensors_are_what_was_read_and_may_be_written(tmp_path: Path) -> None:
    whole = rows_of(100, ["long", "float"])
    write(tmp_path / "a.arrow", whole, [50, 50])
    file = look(tmp_path / "a.arrow")
    (found,) = tables(file, whole.schema)
    addresses = [column.chunk(0).buffers()[1].address for column in found.columns]
    first, second = Converter(whole.schema).convert(found).batches(64)
    assert [first[name].data_ptr() for name in ("long", "float")] == addresses
    assert all(address % 64 == 0 for address in addresses)
    first["long"].zero_()
    assert second["long"].tolist() == list(range(64, 100))
    assert first["float"].tolist() == list(range(64))
    assert tables(file, whole.schema)[0].equals(whole)


def test_a_read_that_brings_less_than_all_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = rows_of(1_000, ["long", "byte", "vector"])
    write(tmp_path / "a.arrow", whole, [300, 700])
    file, real = look(tmp_path / "a.arrow"), os.preadv
    asked: list[int] = []

    def some(descriptor: int, views: list[memoryview], offset: int) -> int:
        asked.append(sum(map(len, views)))
        return real(descriptor, [views[0][:501]], offset)

    monkeypatch.setattr(os, "preadv", some)
    (found,) = tables(file, whole.schema)
    assert found.equals(whole)
    assert len(asked) > 20


def test_a_file_that_is_cut_short_meanwhile(tmp_path: Path) -> None:
    whole = rows_of(1_000, ["long"])
    path = tmp_path / "a.arrow"
    write(path, whole, [1_000])
    with pa.OSFile(str(path)) as source:
        fixed, (batch,) = FixedColumns.of(whole.schema), file_batches(source)
        assert fixed is not None
        places = fixed.places(batch)
        assert places is not None
        os.truncate(path, 4_000)
        with pytest.raises(ValueError, match=f"it ends before byte {places[0] + 8_000}"):
            list(fixed.tables(source.fileno(), [(0, 0, 1_000)], {0: places}, [0], 1_000))


def test_a_file_with_other_rows_than_planned(tmp_path: Path) -> None:
    whole = rows_of(100, ["long"])
    write(tmp_path / "a.arrow", whole, [60, 40])
    file = look(tmp_path / "a.arrow")
    planned = RowGroups.of([50, 50], [400, 400], divisible=True)
    other = DataFileInfo(file.path, file.file_size, 100, planned, file.etag)
    with pytest.raises(ReadError, match="record batch 0 has 60 rows and not 50"):
        tables(other, whole.schema)
    with pytest.raises(ReadError, match="the file has 100 rows only"):
        tables(file, whole.schema, RowRange(90, 20))


def test_without_batches_and_without_rows(tmp_path: Path) -> None:
    empty = rows_of(0, ["long", "vector"])
    write(tmp_path / "a.arrow", empty, [])
    write(tmp_path / "b.arrow", empty, [0, 0])
    for name in ("a", "b"):
        assert tables(look(tmp_path / f"{name}.arrow"), empty.schema) == []


def change(path: Path, batch: int, edit: Callable[[bytearray, int], None]) -> None:
    """Edit the message of a batch: its bytes, and where in them the table of the batch is."""
    raw = bytearray(path.read_bytes())
    with pa.OSFile(str(path)) as source:
        offset, length, _ = ipc_footer.file_blocks(source).batches[batch]
    message = raw[offset + 8 : offset + length]
    header = ipc_footer._field(message, ipc_footer._root(message), 2)
    assert header is not None
    edit(message, ipc_footer._target(message, header))
    raw[offset + 8 : offset + length] = message
    path.write_bytes(raw)


def field(message: bytes, table: int, number: int) -> int:
    place = ipc_footer._field(message, table, number)
    assert place is not None
    return place


def shift_values(message: bytearray, table: int) -> None:
    values = ipc_footer._vector(message, field(message, table, 2), 16)[1]
    struct.pack_into("<qq", message, values, 1, 160)


def shorten_values(message: bytearray, table: int) -> None:
    values = ipc_footer._vector(message, field(message, table, 2), 16)[1]
    struct.pack_into("<q", message, values + 8, 8)


@pytest.mark.parametrize("edit", [shift_values, shorten_values])
def test_what_pyarrow_refuses_is_refused(
    tmp_path: Path, edit: Callable[[bytearray, int], None]
) -> None:
    """And only the rows of that batch are lost."""
    path = tmp_path / "a.arrow"
    whole = rows_of(60, ["long"])
    write(path, whole, [20, 20, 20])
    change(path, 1, edit)
    with pytest.raises((pa.ArrowException, OSError)):
        ipc.open_file(str(path)).read_all().validate(full=True)
    file = look(path)
    with pytest.raises(ReadError, match=r"a\.arrow, rows 20-"):
        tables(file, whole.schema, RowRange(20, 3))
    assert pa.concat_tables(tables(file, whole.schema, RowRange(0, 20))).equals(whole.slice(0, 20))


@pytest.mark.parametrize("rows", [0, 5, 2**60])
def test_a_batch_with_other_rows_than_its_columns_is_refused_at_once(
    tmp_path: Path, rows: int
) -> None:
    """Nothing is known of the rows of such a file, and a batch of none is not missed."""
    path = tmp_path / "a.arrow"
    write(path, rows_of(60, ["long"]), [20, 20, 20])
    change(path, 1, lambda message, table: put(message, field(message, table, 0), rows))
    with pytest.raises((pa.ArrowException, OSError, MemoryError)):
        ipc.open_file(str(path)).read_all().validate(full=True)
    with pytest.raises(ReadError, match=rf"a\.arrow: .* {rows} rows, and its first column 20"):
        look(path)


def put(message: bytearray, place: int, value: int) -> None:
    struct.pack_into("<q", message, place, value)


@pytest.mark.parametrize(("offset", "metadata", "body"), [(0, 64, 0), (0, 8, -8), (4, 0, 0)])
def test_a_footer_that_does_not_agree_with_a_batch(
    tmp_path: Path, offset: int, metadata: int, body: int
) -> None:
    """It says where the values are: other bytes are never taken for them."""
    path = tmp_path / "a.arrow"
    whole = rows_of(60, ["long", "float"])
    write(path, whole, [20, 20, 20])
    with pa.OSFile(str(path)) as source:
        block = ipc_footer.file_blocks(source).batches[1]
    data = path.read_bytes()
    told = struct.pack("<qi4xq", *block)
    assert data.count(told) == 1
    other = (block[0] + offset, block[1] + metadata, block[2] + body)
    path.write_bytes(data.replace(told, struct.pack("<qi4xq", *other)))
    try:
        found = pa.concat_tables(tables(look(path), whole.schema, RowRange(0, 60)))
    except ReadError:
        return
    assert found.equals(whole)


def test_a_name_of_a_column_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write(path, rows_of(20, ["long"]), [20])
    path.write_bytes(path.read_bytes().replace(b"long", b"l\xffng"))
    with pytest.raises(SchemaError, match=r"a\.arrow has a column whose name is not UTF-8"):
        StructuredDataset(path, format="arrow")


def test_compression_as_early_versions_named_it(tmp_path: Path) -> None:
    """In the metadata of the message, which says no more of it than a remark of a user would."""
    path = tmp_path / "a.arrow"
    numbers = np.random.default_rng(0).integers(-(2**62), 2**62, 2_000)
    whole = pa.table({"long": numbers})
    how = ipc.IpcWriteOptions(compression="lz4", metadata_version=ipc.MetadataVersion.V4)
    with ipc.new_file(path, whole.schema, options=how) as writer:
        remark = {"ARROW:experimental_compression": "LZ4"}
        writer.write_batch(whole.to_batches()[0], custom_metadata=remark)

    def forget_compression(message: bytearray, table: int) -> None:
        vtable = table - struct.unpack_from("<i", message, table)[0]
        struct.pack_into("<H", message, vtable + 4 + 2 * 3, 0)

    change(path, 0, forget_compression)
    assert ipc.open_file(str(path)).read_all().equals(whole)
    assert pa.concat_tables(tables(look(path), whole.schema)).equals(whole)


def test_padding_before_the_schema(tmp_path: Path) -> None:
    """As other writers have it, who align more than messages."""
    path, whole = tmp_path / "a.arrow", rows_of(50, ["long", "float"])
    write(path, whole, [20, 30])
    raw = path.read_bytes()
    end = len(raw) - 10
    start = end - struct.unpack("<i", raw[end : end + 4])[0]
    footer = bytearray(raw[start:end])
    place = field(footer, ipc_footer._root(footer), 3)
    for block in ipc_footer._vector(footer, place, 24):
        struct.pack_into("<q", footer, block, struct.unpack_from("<q", footer, block)[0] + 56)
    path.write_bytes(raw[:8] + bytes(56) + raw[8:start] + footer + raw[end:])
    assert ipc.open_file(str(path)).read_all().equals(whole)
    assert pa.concat_tables(tables(look(path), whole.schema)).equals(whole)


def test_no_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write(path, pa.table({"a": range(3)}).select([]), [])
    assert look(path).record_count == 0
    assert tables(look(path), pa.schema([])) == []


def test_a_pyarrow_that_does_not_tell_the_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipc_layout, "_descriptor", lambda source: None)
    whole = rows_of(50, ["long"])
    write(tmp_path / "a.arrow", whole, [20, 30])
    assert not is_divisible(tmp_path / "a.arrow")
    found = tables(look(tmp_path / "a.arrow"), whole.schema, RowRange(10, 30))
    assert pa.concat_tables(found).equals(whole.slice(10, 30))


@pytest.mark.parametrize(
    ("type_", "columns"),
    [(pa.string(), ["x"]), (pa.decimal128(9), ["x"]), (None, ["day", "x"]), (None, ["day"])],
)
def test_blocks_are_small_in_the_types_that_come_out(
    tmp_path: Path, type_: pa.DataType | None, columns: list[str]
) -> None:
    """A byte here may become a text, or stand beside a long one out of the path."""
    folder = tmp_path / ("day=" + "d" * 200)
    folder.mkdir()
    write(folder / "a.arrow", pa.table({"x": np.zeros(200_000, np.int8)}), [50_000] * 4)
    schema = None if type_ is None else pa.schema([("x", type_)])
    _, dataset = StructuredDataset.create_dataloader(
        tmp_path,
        "arrow",
        columns=columns,
        schema=schema,
        partitioning="hive",
        output_format="arrow",
        num_workers=0,
        prefetch_bytes=1 << 20,
    )
    pipeline = dataset.pipeline
    chunk = FileSplit(look(folder / "a.arrow"), RowRange(0, 200_000))
    made = list(pipeline.reader.read(chunk, pipeline.block_bytes))
    assert max(table.nbytes for table in made) <= 3 * pipeline.block_bytes
    assert sum(table.num_rows for table in made) == 200_000
