"""Arrow IPC files of numbers and vectors: any rows of any columns, in tables of a given size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from arrow_files import COLUMNS, look, rows_of, tables, write
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import StructuredDataset
from headrace.errors import ReadError
from headrace.model import DataFileInfo, FileSplit, RowGroups, RowRange


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


def test_columns_of_other_types_beside_fixed_ones(tmp_path: Path) -> None:
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
    for name, column in others.items():
        mixed = numbers.append_column(name, column)
        path = tmp_path / f"{name}.arrow"
        write(path, mixed, [60, 40])
        found = pa.concat_tables(tables(look(path), mixed.schema, RowRange(30, 50)))
        assert found.equals(mixed.slice(30, 50)), name


def test_many_columns_in_many_batches(tmp_path: Path) -> None:
    whole = pa.table({f"c{i}": np.arange(40) + i for i in range(600)})
    write(tmp_path / "a.arrow", whole, [4] * 10)
    (found,) = tables(look(tmp_path / "a.arrow"), whole.schema)
    assert found.equals(whole)
    few = pa.schema([whole.schema.field(i) for i in (0, 300, 301, 599)])
    (found,) = tables(look(tmp_path / "a.arrow"), few, RowRange(3, 30))
    assert found.equals(whole.select(few.names).slice(3, 30))


def test_a_file_with_other_rows_than_planned(tmp_path: Path) -> None:
    whole = rows_of(100, ["long"])
    write(tmp_path / "a.arrow", whole, [60, 40])
    file = look(tmp_path / "a.arrow")
    planned = RowGroups.of([50, 50], [400, 400])
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


def test_no_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write(path, pa.table({"a": range(3)}).select([]), [])
    assert look(path).record_count == 0
    assert tables(look(path), pa.schema([])) == []


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
    pipeline = dataset.epochs.pipeline
    chunk = FileSplit(look(folder / "a.arrow"), RowRange(0, 200_000))
    made = list(pipeline.reader.read(chunk, pipeline.block_bytes))
    assert max(table.nbytes for table in made) <= 3 * pipeline.block_bytes
    assert sum(table.num_rows for table in made) == 200_000
