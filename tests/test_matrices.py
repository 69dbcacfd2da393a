"""Fixed-size lists of fixed-size lists, of whose slices pyarrow takes and filters wrong rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from headrace import StructuredDataset, shuffle_into
from headrace.convert.columns import ArrowBlock, ObjectColumn
from headrace.matrices import rows_at, rows_kept, values_at
from headrace.sources.files.filters import rows_where
from headrace.sources.files.protocol import cut_rows
from headrace.sources.taking import pick

ROWS = 1_003
INT = pa.int32()


def matrix(type_: pa.DataType = INT, rows: int = ROWS) -> pa.Array:
    """Values of which none comes twice."""
    numbers = pa.array(np.arange(rows * 3 * 2))
    if pa.types.is_fixed_size_binary(type_):
        values = pa.array([b"%05d" % number for number in numbers.to_pylist()], type_)
    else:
        values = numbers.cast(type_)
    lines = pa.FixedSizeListArray.from_arrays(values, 2)
    return pa.FixedSizeListArray.from_arrays(lines, 3)


def cube() -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(matrix(rows=2 * ROWS), 2)


def in_struct(null_every: int = 10 * ROWS) -> pa.Array:
    inner = pa.StructArray.from_arrays([matrix(), pa.array(np.arange(ROWS))], ["m", "x"])
    nulls = pa.array(np.arange(ROWS) % null_every == null_every - 1)
    return pa.StructArray.from_arrays([inner], ["s"], mask=nulls)


def in_lists() -> pa.Array:
    ends = np.minimum(np.arange(ROWS + 1) * 2, ROWS).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), matrix())


COLUMNS: dict[str, Callable[[], pa.Array]] = {
    "matrix": matrix,
    "floats": lambda: matrix(pa.float32()),
    "hashes": lambda: matrix(pa.binary(5)),
    "cube": cube,
    "in struct": in_struct,
    "in lists": in_lists,
}
IN_MEMORY = {**COLUMNS, "in null structs": lambda: in_struct(7)}
"""and what older versions of pyarrow do not write into Parquet files"""


def written(folder: Path, kind: str, column: pa.Array, group: int = 400) -> pa.Table:
    table = pa.table({"n": np.arange(len(column)), "c": column})
    if kind == "parquet":
        pq.write_table(table, folder / "a.parquet", row_group_size=group)
        return table
    # A column of bits: batches are not read row by row.
    table = table.append_column("flag", pa.array(np.arange(len(column)) % 2 == 0))
    with ipc.new_file(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=group)
    return table


def assert_rows_of(table: pa.Table, batches: list[Any], rows: np.ndarray[Any, Any]) -> None:
    """Every row once, each with the value that is its own."""
    expected = table["c"].to_pylist()
    seen: list[int] = []
    for batch in batches:
        numbers, values = batch["n"].tolist(), batch["c"]
        got = values.to_pylist() if isinstance(values, pa.Array) else values.tolist()
        assert got == [expected[number] for number in numbers]
        seen += numbers
    assert sorted(seen) == rows.tolist()


LOADERS: dict[str, dict[str, Any]] = {
    "small chunks": {"split_rows": 37},
    "small chunks, shuffled": {"split_rows": 37, "shuffle": True},
    "filtered": {"filters": ds.field("n") >= 500},
    "filtered in lanes": {"filters": ds.field("n") >= 500, "lanes": 4},
    "filtered small chunks": {"filters": ds.field("n") >= 500, "split_rows": 37},
    "mixed lanes": {"lanes": 4, "shuffle": True, "mix": 2, "split_rows": 100},
    "shuffled lanes": {"lanes": 3, "shuffle": True, "mix": 3},
}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *(("matrix", how) for how in LOADERS),
        *((name, "filtered small chunks") for name in COLUMNS if name != "matrix"),
        *((name, "mixed lanes") for name in COLUMNS if name != "matrix"),
    ],
)
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_loaders_give_every_row_its_value(tmp_path: Path, name: str, kind: str, how: str) -> None:
    table = written(tmp_path, kind, COLUMNS[name]())
    dataset = StructuredDataset(
        tmp_path,
        kind,
        batch_size=50,
        prefetch_bytes=1 << 16,
        output_format="arrow",
        **LOADERS[how],
    )
    rows = np.arange(500 if "filters" in LOADERS[how] else 0, ROWS)
    assert_rows_of(table, list(dataset), rows)


@pytest.mark.parametrize("how", ["filtered small chunks", "mixed lanes"])
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_tensors(tmp_path: Path, kind: str, how: str) -> None:
    table = written(tmp_path, kind, matrix())
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, kind, batch_size=50, num_workers=0, prefetch_bytes=1 << 16, **LOADERS[how]
    )
    rows = np.arange(500 if "filters" in LOADERS[how] else 0, ROWS)
    assert_rows_of(table, list(loader), rows)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_filters_over_more_rows_than_pyarrow_looks_at_at_once(tmp_path: Path, kind: str) -> None:
    table = written(tmp_path, kind, matrix(rows=40_000), group=40_000)
    keep = ds.field("n") != 3
    dataset = StructuredDataset(tmp_path, kind, filters=keep, output_format="arrow")
    assert_rows_of(table, list(dataset), np.delete(np.arange(40_000), 3))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("name", COLUMNS)
def test_rows_by_index(tmp_path: Path, kind: str, name: str) -> None:
    table = written(tmp_path, kind, COLUMNS[name]())
    dataset = StructuredDataset(tmp_path, kind, output_format="dict")
    indices = np.random.default_rng(0).permutation(ROWS)[:200].tolist()
    found = dataset.rows.__getitems__(indices)
    assert [row["n"] for row in found] == indices
    assert [row["c"] for row in found] == table["c"].take(pa.array(indices)).to_pylist()


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_lists_that_become_of_fixed_size(tmp_path: Path, kind: str) -> None:
    column = matrix()
    table = pa.table({"n": np.arange(ROWS), "c": column.cast(pa.list_(pa.list_(pa.int32())))})
    if kind == "parquet":
        pq.write_table(table, tmp_path / "a.parquet")
    else:
        orc.write_table(table, tmp_path / "a.orc")
    schema = pa.schema({"n": pa.int64(), "c": column.type})
    for options in LOADERS.values():
        dataset = StructuredDataset(
            tmp_path, kind, schema=schema, batch_size=50, output_format="arrow", **options
        )
        assert_rows_of(table, list(dataset), np.arange(500 if "filters" in options else 0, ROWS))


@pytest.mark.parametrize("name", ["matrix", "in struct", "in lists"])
def test_shuffled_copies(tmp_path: Path, name: str) -> None:
    (tmp_path / "source").mkdir()
    table = written(tmp_path / "source", "arrow", COLUMNS[name]())
    shuffle_into(
        tmp_path / "source", tmp_path / "copy", filters=ds.field("n") >= 100, memory_bytes="1MiB"
    )
    copy = StructuredDataset(tmp_path / "copy", batch_size=50, output_format="arrow")
    assert_rows_of(table, list(copy), np.arange(100, ROWS))


def test_shuffled_copies_of_what_is_filtered(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    table = written(tmp_path / "source", "parquet", matrix(rows=40_000), group=40_000)
    shuffle_into(tmp_path / "source", tmp_path / "copy", filters=ds.field("n") != 3)
    copy = StructuredDataset(tmp_path / "copy", output_format="arrow")
    assert_rows_of(table, list(copy), np.delete(np.arange(40_000), 3))


def slices(column: pa.Array) -> dict[str, pa.Table]:
    """Rows 137 to 637 in ways in which slices come about."""
    table = pa.table({"n": np.arange(len(column)), "c": column})
    cut = column.slice(137, 500)
    two = pa.chunked_array([cut.slice(0, 90), cut.slice(90)])
    batch = pa.RecordBatch.from_arrays([cut], ["c"]).append_column("n", pa.array(range(137, 637)))
    return {
        "table": table.slice(137, 500),
        "slice of a slice": table.slice(100).slice(37, 500),
        "chunks": pa.table({"n": np.arange(137, 637), "c": two}),
        "batch": pa.Table.from_batches([batch]).select(["n", "c"]),
        "none": pa.table({"n": np.arange(137, 637), "c": pa.concat_arrays([cut, cut[:0]])}),
    }


@pytest.mark.parametrize("name", IN_MEMORY)
def test_rows_of_slices(name: str) -> None:
    column = IN_MEMORY[name]()
    expected = column.to_pylist()
    random = np.random.default_rng(0)
    chosen = [random.permutation(500), random.integers(0, 500, 3), np.arange(0)]
    for table in slices(column).values():
        results = [rows_at(table, rows) for rows in chosen]
        results += [rows_kept(table, random.random(500) < share) for share in (0.5, 0.004)]
        results += [cut_rows(table, 20, 120), cut_rows(table, 20, 420)]
        results += [rows_where(table, ds.field("n") > 300), rows_where(table, ds.field("n") < 0)]
        picked = [values_at(column.slice(137, 500), chosen[0]), pick(table["c"], np.arange(300))]
        numbers = [137 + chosen[0], np.arange(137, 437)]
        results += [
            pa.table({"n": n, "c": values}) for n, values in zip(numbers, picked, strict=True)
        ]
        for result in results:
            result.validate(full=True)
            assert result.schema.names == ["n", "c"]
            assert result["c"].to_pylist() == [expected[n] for n in result["n"].to_pylist()]


def test_a_filter_may_ask_for_such_a_column() -> None:
    values = [None, [[1, 2]], [[3, 4]], None, [[5, 6]]]
    column = pa.array(values, pa.list_(pa.list_(pa.int8(), 2), 1))
    table = pa.table({"n": pa.array([0, 1, None, 3, 4]), "c": column}).slice(1)
    valid = rows_where(table, ds.field("c").is_valid())
    assert valid["c"].to_pylist() == [[[1, 2]], [[3, 4]], [[5, 6]]]
    assert rows_where(table, ds.field("n") > 0)["n"].to_pylist() == [1, 3, 4]


@pytest.mark.parametrize("name", IN_MEMORY)
def test_blocks_that_were_cut(name: str) -> None:
    column = IN_MEMORY[name]()
    table = pa.table({"n": np.arange(ROWS), "c": column})
    rows = np.random.default_rng(0).permutation(500)
    block = ArrowBlock(table, as_python=True).slice(137, 500)
    expected = [column[137 + row].as_py() for row in range(500)]
    assert [value for batch in block.batches(100) for value in batch["c"]] == expected
    expected = [column[137 + row].as_py() for row in rows.tolist()]
    objects = ObjectColumn(column, None, as_array=False).slice(137, 500).take(rows)
    assert [value for batch in objects.split(100) for value in batch] == expected


def test_few_rows_of_a_slice_are_not_paid_for_with_all_of_it() -> None:
    column = matrix(rows=100_000).slice(1)
    before = pa.total_allocated_bytes()
    taken = values_at(column, np.array([5, 70_000]))
    assert pa.total_allocated_bytes() - before < 10_000
    assert taken.to_pylist() == [column[5].as_py(), column[70_000].as_py()]


@pytest.mark.parametrize("rows", [[-1], [0, ROWS]])
def test_rows_that_a_table_does_not_have_are_refused(rows: list[int]) -> None:
    for table in (pa.table({"x": range(ROWS)}), pa.table({"x": range(ROWS), "m": matrix()})):
        with pytest.raises(IndexError, match=f"a table of {ROWS} rows"):
            rows_at(table, np.array(rows))
