"""Rows from the pages that hold them: the same rows that whole row groups give."""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from thrift_writer import I32, I64, LIST, STRUCT, write_struct

from headrace.sources.parquet._format import Footer
from headrace.sources.parquet._pages import PageMismatch, PageReader, parse_struct

OLD = int(pa.__version__.partition(".")[0]) < 20
MAKERS: dict[pa.DataType, Callable[[random.Random], Any]] = {
    pa.int8(): lambda r: r.randrange(-128, 128),
    pa.uint32(): lambda r: r.randrange(2**32),
    pa.int64(): lambda r: r.randrange(-(2**63), 2**63),
    pa.bool_(): lambda r: r.random() < 0.3,
    pa.float32(): lambda r: float(np.float32(r.random())),
    pa.float64(): lambda r: r.random(),
    pa.string(): lambda r: "ä" * r.randrange(40),
    pa.large_string(): lambda r: str(r.randrange(5)),
    pa.binary(): lambda r: r.randbytes(r.randrange(300)),
    pa.binary(7): lambda r: r.randbytes(7),
    pa.decimal128(20, 3): lambda r: decimal.Decimal(r.randrange(10**15)).scaleb(-3),
    pa.date32(): lambda r: datetime.date(2000, 1, 1 + r.randrange(28)),
    pa.timestamp("us", "UTC"): lambda r: r.randrange(10**15),
    pa.timestamp("ns"): lambda r: r.randrange(10**15) * 1_000,  # Python has no finer ones
    pa.duration("ms"): lambda r: r.randrange(10**9),
    pa.dictionary(pa.int32(), pa.string()): lambda r: f"word {r.randrange(9)}",
    pa.null(): lambda r: None,
}
FLAT = st.sampled_from(list(MAKERS))


def nested(inside: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    # pyarrow writes no lists of nothing, and cannot always read dictionaries inside of others.
    plain = inside.filter(lambda t: not (pa.types.is_null(t) or pa.types.is_dictionary(t)))
    numbers = st.sampled_from([pa.float32(), pa.int64()])
    return (
        plain.map(pa.list_)
        | plain.map(pa.large_list)
        | plain.map(lambda type_: pa.map_(pa.string(), type_))
        | numbers.map(lambda type_: pa.list_(type_, 3))
        | st.lists(plain, min_size=1, max_size=3).map(
            lambda types: pa.struct([(f"f{i}", type_) for i, type_ in enumerate(types)])
        )
    )


TYPES = st.recursive(FLAT, nested, max_leaves=4)


def value(type_: pa.DataType, r: random.Random, nulls: float) -> Any:
    if r.random() < nulls:
        return None
    if type_ in MAKERS:
        return MAKERS[type_](r)
    if pa.types.is_struct(type_):
        return {field.name: value(field.type, r, nulls) for field in type_}
    if pa.types.is_map(type_):
        return [(str(i), value(type_.item_type, r, nulls)) for i in range(r.randrange(4))]
    length = type_.list_size if pa.types.is_fixed_size_list(type_) else r.randrange(5)
    return [value(type_.value_type, r, nulls) for _ in range(length)]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    r = random.Random(draw(st.integers(0, 2**32)))
    rows = draw(st.integers(1, 400))
    nulls = draw(st.sampled_from([0.0, 0.2, 0.9]))
    types = draw(st.lists(TYPES, min_size=1, max_size=3))
    return pa.table(
        {
            f"c{i}": pa.array([value(type_, r, nulls) for _ in range(rows)], type_)
            for i, type_ in enumerate(types)
        }
    )


WRITING = st.fixed_dictionaries(
    {
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "compression": st.sampled_from(["none", "snappy", "zstd", "gzip", "lz4", "brotli"]),
        "use_dictionary": st.booleans(),
        "dictionary_pagesize_limit": st.sampled_from([100, 1 << 20]),
        "data_page_size": st.sampled_from([64, 1000, 1 << 20]),
        "write_batch_size": st.sampled_from([1, 7, 100]),
        "row_group_size": st.sampled_from([60, 1000]),
        "store_schema": st.booleans(),
        "write_page_index": st.just(True),
        "write_page_checksum": st.booleans(),
    }
)


def reader_of(path: Path, source: pa.NativeFile, **options: Any) -> PageReader:
    key = str(path), path.stat().st_mtime_ns
    return PageReader(source, Footer(pq.read_metadata(path)), key, options)


def read_rows(path: Path, rows: np.ndarray, columns: list[str], **options: Any) -> pa.Table:
    """Through pages, group by group."""
    footer = pq.read_metadata(path)
    counts = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
    starts = np.cumsum([0, *counts])
    wanted = {
        group: mine - starts[group]
        for group in range(len(counts))
        if len(mine := rows[(rows >= starts[group]) & (rows < starts[group + 1])])
    }
    with pa.OSFile(str(path)) as source:
        reader = reader_of(path, source, **options)
        found = reader.select(wanted, columns)
        assert [one.group for one in found] == list(wanted)
        assert all(0 < one.page_bytes <= one.chunk_bytes for one in found)
        return pa.concat_tables(reader.read(found))


def as_pyarrow_reads(path: Path, rows: np.ndarray) -> pa.Table:
    """It cannot read all that it writes: a first page without rows, of lists, is the end to it."""
    try:
        return pq.ParquetFile(path).read().take(pa.array(rows))
    except pa.ArrowException:
        reject()


@pytest.mark.skipif(OLD, reason="it cannot read, or write, all of these")
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(tables(), WRITING, st.data())
def test_any_rows_of_any_types(
    tmp_path_factory: pytest.TempPathFactory,
    table: pa.Table,
    writing: dict[str, Any],
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("pages") / "a.parquet"
    pq.write_table(table, path, **writing)
    some = data.draw(st.sets(st.integers(0, table.num_rows - 1), min_size=1, max_size=9))
    rows = np.array(sorted(some))
    checks = {"page_checksum_verification": writing["write_page_checksum"]}
    got = read_rows(path, rows, table.column_names, **checks)
    wanted = as_pyarrow_reads(path, rows)
    assert got.schema.equals(wanted.schema.remove_metadata())
    assert got.to_pylist() == wanted.to_pylist()
    got.validate(full=True)


def test_only_pages_with_wanted_rows_are_chosen(tmp_path: Path) -> None:
    table = pa.table({"id": np.arange(1000), "text": [f"{i:01000}" for i in range(1000)]})
    pq.write_table(
        table,
        tmp_path / "a.parquet",
        write_page_index=True,
        use_dictionary=False,
        compression="none",
        data_page_size=10_000,
        write_batch_size=10,
    )
    with pa.OSFile(str(tmp_path / "a.parquet")) as source:
        reader = reader_of(tmp_path / "a.parquet", source)
        [chosen] = reader.select({0: np.array([5, 500, 501])}, ["text"])
    assert len(chosen.spans) == 2
    assert 20_000 < chosen.page_bytes < 25_000
    assert chosen.chunk_bytes > 1_000_000


def test_fields_of_a_struct_are_read_each_with_its_own_pages(tmp_path: Path) -> None:
    images = [None if i % 9 == 0 else {"bytes": bytes(1000), "path": str(i)} for i in range(1000)]
    pq.write_table(
        pa.table({"image": images}),
        tmp_path / "a.parquet",
        write_page_index=True,
        use_dictionary=False,
        compression="none",
        data_page_size=10_000,
        write_batch_size=10,
    )
    rows = np.array([0, 1, 998, 999])
    with pa.OSFile(str(tmp_path / "a.parquet")) as source:
        reader = reader_of(tmp_path / "a.parquet", source)
        [chosen] = reader.select({0: rows}, ["image"])
    assert chosen.page_bytes < 50_000 < 800_000 < chosen.chunk_bytes
    got = read_rows(tmp_path / "a.parquet", rows, ["image"])
    assert got["image"].to_pylist() == [images[row] for row in rows]


def test_groups_without_an_index_are_not_chosen(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": np.arange(1000)}), tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "a.parquet")) as source:
        reader = reader_of(tmp_path / "a.parquet", source)
        assert reader.select({0: np.array([5])}, ["id"]) == []
        assert reader.select({0: np.array([5])}, ["other"]) == []


@pytest.mark.parametrize("damage", ["offset", "first row", "garbage"])
def test_an_index_that_is_wrong_is_found_out(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"id": np.arange(1000) * 7})
    options: dict[str, Any] = {"use_dictionary": False, "data_page_size": 100}
    pq.write_table(table, path, write_page_index=True, write_batch_size=50, **options)
    spoil_offset_index(path, damage)
    with pytest.raises(PageMismatch):
        read_rows(path, np.array([333, 353]), ["id"])


def spoil_offset_index(path: Path, damage: str) -> None:
    """Change the offset index of the first column chunk, in place."""
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[-8:-4], "little")
    footer = parse_struct(bytes(data[-8 - length : -8]))
    chunk = footer[4][0][1][0]
    start, size = chunk[4], chunk[5]
    if damage == "garbage":
        data[start : start + size] = b"\xff" * size
    else:
        index = parse_struct(bytes(data[start : start + size]))
        for page in index[1][7:]:
            page[1 if damage == "offset" else 3] += 1
        pages = [{1: (I64, one[1]), 2: (I32, one[2]), 3: (I64, one[3])} for one in index[1]]
        changed = write_struct({1: (LIST, (STRUCT, pages))})
        assert len(changed) == size
        data[start : start + size] = changed
    path.write_bytes(data)


def test_pages_without_rows_are_left_out(tmp_path: Path) -> None:
    """pyarrow writes one before the last row of lists, if what is there is full."""
    small: dict[str, Any] = {"dictionary_pagesize_limit": 30, "data_page_size": 64}
    found = 0
    for seed in range(4):
        path = tmp_path / f"{seed}.parquet"
        r = random.Random(seed)
        rows = [value(pa.list_(pa.int8()), r, 0.9) for _ in range(150)]
        table = pa.table({"some": pa.array(rows, pa.list_(pa.int8()))})
        pq.write_table(table, path, write_page_index=True, write_batch_size=1, **small)
        with pa.OSFile(str(path)) as source:
            reader = reader_of(path, source)
            [whole] = reader.select({0: np.arange(150)}, ["some"])
            pages = reader._pages(0, 0)
        found += sum(start >= pages.offsets[0] for start, _ in whole.spans) < len(pages.offsets)
        assert read_rows(path, np.array([149]), ["some"])["some"].to_pylist() == rows[-1:]
    assert found or OLD  # which writes no such pages
