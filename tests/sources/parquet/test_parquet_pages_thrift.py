"""Thrift's compact protocol: values come back as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thrift_writer import (
    BINARY,
    BYTE,
    DOUBLE,
    FLAG,
    I32,
    I64,
    LIST,
    NO_FLAG,
    SHORT,
    STRUCT,
    Tree,
    plain,
    write_struct,
)

from headrace.sources.parquet._pages import parse_struct


def values(kind: int, inside: st.SearchStrategy[Tree]) -> st.SearchStrategy[Any]:
    if kind in (FLAG, BYTE):  # as they are inside of lists
        return st.integers(0, 255)
    if kind in (SHORT, I32, I64):
        return st.integers(-(2**63), 2**63 - 1)
    if kind == DOUBLE:
        return st.binary(min_size=8, max_size=8)
    return st.binary(max_size=200) if kind == BINARY else inside


KINDS = st.sampled_from([FLAG, BYTE, SHORT, I32, I64, DOUBLE, BINARY, STRUCT])


def lists(inside: st.SearchStrategy[Tree]) -> st.SearchStrategy[Any]:
    return KINDS.flatmap(
        lambda kind: st.tuples(st.just(kind), st.lists(values(kind, inside), max_size=20))
    )


def fields(inside: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    single = KINDS.filter(lambda kind: kind != FLAG).flatmap(
        lambda kind: st.tuples(st.just(kind), values(kind, inside))
    )
    flags = st.sampled_from([(FLAG, True), (NO_FLAG, False)])
    nested = st.tuples(st.just(LIST), lists(inside))
    return st.dictionaries(st.integers(1, 40), single | flags | nested, max_size=6)


STRUCTS: st.SearchStrategy[Tree] = st.recursive(st.just({}), fields, max_leaves=6)


@given(STRUCTS)
def test_what_is_written_is_read(tree: Tree) -> None:
    assert parse_struct(write_struct(tree) + b"more") == plain(tree)


@given(STRUCTS, st.data())
def test_what_is_cut_short_is_an_error(tree: Tree, data: st.DataObject) -> None:
    written = write_struct(tree)
    end = data.draw(st.integers(0, len(written) - 1))
    with pytest.raises(ValueError, match="cut short"):
        parse_struct(written[:end])


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="no kind 14"):
        parse_struct(bytes([0x1E, 0, 0]))


def test_footers_of_parquet_are_those_that_pyarrow_reads(tmp_path: Path) -> None:
    table = pa.table({"a": [1.5, None], "b": [["x"], ["y", None]], "c": [{"d": 1}, None]})
    pq.write_table(table, tmp_path / "a.parquet", write_page_index=True)
    data = (tmp_path / "a.parquet").read_bytes()
    tree = parse_struct(data[-8 - int.from_bytes(data[-8:-4], "little") :])
    footer = pq.read_metadata(tmp_path / "a.parquet")
    assert tree[3] == footer.num_rows
    for leaf, chunk in enumerate(tree[4][0][1]):
        stored = footer.row_group(0).column(leaf)
        assert chunk[3][9] == stored.data_page_offset
        assert chunk[3][7] == stored.total_compressed_size
        assert b".".join(chunk[3][3]).decode() == stored.path_in_schema
