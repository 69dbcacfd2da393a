"""Paths of data files in deletes: how they are written, and bounds of them."""

import pytest
from delete_entries import entry, found, names, vector
from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.iceberg._deletes import ALL_PATHS, plain_bounds, plain_path
from headrace.sources.tables._catalog import store_path


def test_bounds_may_be_cut_short() -> None:
    deletes = [
        entry("below", bounds=("s3://b/a", "s3://b/c")),
        entry("holds", bounds=("s3://b/d", "s3://b/e")),
        entry("from", bounds=("s3://b/data.parquet", None)),
        entry("to", bounds=(None, "s3://b/data.parquet")),
        entry("above", bounds=("s3://b/data.parquet2", "s3://b/z")),
        entry("any"),
    ]
    assert names(found(deletes)) == ["any", "from", "holds", "to"]


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("file:///x/y", "/x/y"),
        ("file:/x/y", "/x/y"),
        ("/x/y", "/x/y"),
        ("file://host/x", "file://host/x"),
        ("s3://b/file:/x", "s3://b/file:/x"),
    ],
)
def test_plain_paths(path: str, plain: str) -> None:
    assert plain_path(path) == plain


def test_paths_are_opened_as_stores_call_them() -> None:
    assert store_path("s3a://b/x") == store_path("s3n://b/x") == "s3://b/x"
    assert store_path("file:///x") == "/x"
    assert store_path("gs://b/s3a://x") == "gs://b/s3a://x"


def test_a_local_file_is_the_same_however_it_is_written() -> None:
    spellings = ["/w/a", "file:/w/a", "file:///w/a"]
    for one in spellings:
        for other in spellings:
            assert names(found([entry("d", bounds=(one, one))], path=other)) == ["d"]
            assert names(found([entry("d", bounds=(one, one + "z"))], path=other)) == ["d"]
            assert names(found([vector("v", one)], path=other)) == ["v"]


LOCAL = st.sampled_from(["/", "file:/", "file:///", "file://", "s3://", "file:/$", "file:"])
PATHS = st.builds(str.__add__, LOCAL, st.text("ab/$", max_size=3))


@given(st.lists(PATHS, min_size=1), st.integers(1, 12))
def test_bounds_hold_every_path_that_is_between_them(paths: list[str], cut: int) -> None:
    """Whatever spellings a delete file mixes, and however short its bounds are cut."""
    raw = sorted(path.encode() for path in paths)
    upper = raw[-1] if len(raw[-1]) <= cut else raw[-1][: cut - 1] + bytes([raw[-1][cut - 1] + 1])
    low, high = plain_bounds(raw[0][:cut], upper)
    for path in paths:
        assert low <= plain_path(path).encode() <= high


def test_bounds_that_are_missing_or_contradict_hold_all_paths() -> None:
    assert plain_bounds(None, None) == ALL_PATHS
    assert plain_bounds(b"s3://z", b"s3://a") == ALL_PATHS
