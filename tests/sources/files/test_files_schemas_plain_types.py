"""Views of text and bytes and run-end encoded columns, as polars writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from headrace import StructuredDataset
from headrace.access import ArrowBackend, RowDataset
from headrace.errors import SchemaError
from headrace.sources.files.schemas import plain_table, plain_type

ROWS = 300
TEXTS = [None if i % 11 == 3 else f"text number {i}" * (i % 4) for i in range(ROWS)]


def runs(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Run-end encoded values, each of which comes twice."""
    ends = pa.array(range(2, ROWS + 1, 2), pa.int32())
    return pa.RunEndEncodedArray.from_arrays(ends, pa.array(values[::2], type_))


COLUMNS = {
    "string_view": pa.array(TEXTS, pa.string_view()),
    "binary_view": pa.array([t and t.encode() for t in TEXTS], pa.binary_view()),
    "runs": runs(list(range(ROWS)), pa.int64()),
    "runs of text": runs(TEXTS, pa.string()),
    "runs of views": runs(TEXTS, pa.string_view()),
    "codes of views": pa.DictionaryArray.from_arrays(
        pa.array([i % 3 for i in range(ROWS)], pa.int8()),
        pa.array(["one", "two", "three that is long"], pa.string_view()),
    ),
    "list": pa.array([[t, t] for t in TEXTS], pa.list_(pa.string_view())),
    "struct": pa.array([{"t": t} for t in TEXTS], pa.struct({"t": pa.string_view()})),
    "map": pa.array([[("k", t)] for t in TEXTS], pa.map_(pa.string_view(), pa.binary_view())),
}
IDS = pa.array(range(ROWS))


def write(path: Path, table: pa.Table, form: str) -> None:
    new = ipc.new_stream if form == "stream" else ipc.new_file
    options = ipc.IpcWriteOptions(compression="zstd" if form == "compressed" else None)
    with new(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=70)


def loaded(path: Path, format_: str = "arrow", **options: Any) -> pa.Table:
    loader, _ = StructuredDataset.create_dataloader(
        path, format_, batch_size=16, num_workers=0, output_format="arrow", **options
    )
    return pa.concat_tables(
        [b if isinstance(b, pa.Table) else pa.Table.from_batches([b]) for b in loader]
    )


@pytest.mark.parametrize("form", ["file", "stream", "compressed"])
@pytest.mark.parametrize("name", COLUMNS)
def test_in_order_by_index_filtered_and_in_small_chunks(
    tmp_path: Path, name: str, form: str
) -> None:
    column = COLUMNS[name]
    path, table = tmp_path / "a.arrow", pa.table({"id": IDS, "c": column})
    write(path, table, form)
    values = column.to_pylist()
    found = loaded(path)
    assert found.schema.field("c").type == plain_type(column.type)
    assert found["c"].to_pylist() == values
    assert loaded(path, columns=["c"])["c"].to_pylist() == values
    odd = loaded(path, filters=ds.field("id") >= 205)
    assert odd["c"].to_pylist() == values[205:]
    if form != "stream":
        assert loaded(path, split_rows=9)["c"].to_pylist() == values
    mixed = loaded(path, shuffle=True)
    assert mixed["c"].to_pylist() == [values[i] for i in mixed["id"].to_pylist()]
    backend = ArrowBackend(path)
    picks = [299, 0, 71, 71, 140, 5]
    assert backend.take(picks)["c"].to_pylist() == [values[i] for i in picks]
    assert backend.get_row(141) == {"id": 141, "c": values[141]}
    assert backend.slice(60, 90)["c"].to_pylist() == values[60:150]
    rows = RowDataset(backend, output_format="dict")
    assert [rows[i]["c"] for i in picks] == [values[i] for i in picks]


@pytest.mark.parametrize("name", ["string_view", "runs", "codes of views"])
def test_filters_on_such_columns(tmp_path: Path, name: str) -> None:
    column = COLUMNS[name]
    write(tmp_path / "a.arrow", pa.table({"id": IDS, "c": column}), "file")
    wanted = column.to_pylist()[6]
    found = loaded(tmp_path, filters=ds.field("c") == wanted)
    expected = [i for i, value in enumerate(column.to_pylist()) if value == wanted]
    assert found["id"].to_pylist() == expected


@pytest.mark.skipif(pa.__version__ < "20", reason="pyarrow writes no views into Parquet")
@pytest.mark.parametrize("name", ["string_view", "binary_view", "list"])
def test_parquet_in_small_chunks_mixed_and_filtered(tmp_path: Path, name: str) -> None:
    column, path = COLUMNS[name], tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": IDS, "c": column}), path, row_group_size=70)
    values = column.to_pylist()
    dataset = StructuredDataset(path, output_format="arrow")
    assert dataset.schema.field("c").type == plain_type(column.type)
    for options in ({}, {"mix": 3}):
        mixed = loaded(path, "parquet", shuffle=True, split_rows=9, **options)
        assert mixed["c"].to_pylist() == [values[i] for i in mixed["id"].to_pylist()]
    if name.endswith("view"):
        found = loaded(path, "parquet", filters=ds.field("c") == values[6])
        assert set(found["c"].to_pylist()) == {values[6]}


@pytest.mark.parametrize("name", COLUMNS)
def test_tables_and_slices_of_them(name: str) -> None:
    table = pa.table({"c": pa.chunked_array([COLUMNS[name], COLUMNS[name]])})
    values = COLUMNS[name].to_pylist() * 2
    for part in (table, table.slice(7), table.slice(0, 41), table.slice(37, 401)):
        start = 0 if len(part) in (41, 600) else (7 if len(part) == 593 else 37)
        assert plain_table(part)["c"].to_pylist() == values[start : start + len(part)]
    backend = ArrowBackend(table=table)
    assert backend.take([599, 3])["c"].to_pylist() == [values[599], values[3]]


def test_files_of_views_beside_files_of_plain_text(tmp_path: Path) -> None:
    for number, type_ in enumerate([pa.string(), pa.string_view()]):
        table = pa.table({"t": pa.array(TEXTS, type_)})
        write(tmp_path / f"{number}.arrow", table, "file")
    assert loaded(tmp_path)["t"].to_pylist() == TEXTS * 2


def test_a_table_is_brought_to_a_schema() -> None:
    table = pa.table({"a": np.arange(5), "b": [str(i) for i in range(5)], "c": [1.5] * 5})
    schema = pa.schema({"b": pa.large_string(), "a": pa.int16()})
    backend = ArrowBackend(table=table, schema=schema)
    assert backend.schema == schema
    assert backend.take([4, 1]).to_pylist() == [{"b": "4", "a": 4}, {"b": "1", "a": 1}]
    assert backend.get_row(2) == {"b": "2", "a": 2}
    assert pc.sum(backend.table["a"]).as_py() == 10


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema({"x": pa.int64()}), "names a column 'x'; the table has a"),
        (pa.schema({"a": pa.int8()}), "cannot be brought to schema"),
    ],
)
def test_a_schema_that_a_table_cannot_have(schema: pa.Schema, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        ArrowBackend(table=pa.table({"a": [1000]}), schema=schema)


def test_a_file_that_polars_wrote(tmp_path: Path) -> None:
    """The file is of polars 2.1: text and bytes are views, and categories have views as values."""
    path = tmp_path / "polars.arrow"
    path.write_bytes(Path(__file__).with_name("written_by_polars.arrow").read_bytes())
    with ipc.open_file(path) as file:
        assert pa.string_view() in file.schema.types
    texts = [
        f"a long text that does not fit into a view, {n}" if n % 3 else f"ß{n}" for n in range(60)
    ]
    wanted = {
        "row": list(range(60)),
        "text": texts,
        "bytes": [bytes([n]) * (n % 20) for n in range(60)],
        "null": [None if n % 7 == 0 else f"n{n}" for n in range(60)],
        "kind": ["abc"[n % 3] for n in range(60)],
    }
    for options in ({}, {"split_rows": 7}, {"split_rows": 7, "shuffle": True}):
        table = loaded(path, **options).sort_by("row")
        assert {name: table[name].to_pylist() for name in table.column_names} == wanted
    some = loaded(path, filters=ds.field("text") == texts[31])
    assert some["row"].to_pylist() == [31]
    rows = RowDataset(ArrowBackend(path), output_format="dict")
    for row in (59, 0, 7):
        assert rows[row] == {name: values[row] for name, values in wanted.items()}
    taken = ArrowBackend(path).take([40, 3, 3])
    assert taken["text"].to_pylist() == [texts[40], texts[3], texts[3]]
