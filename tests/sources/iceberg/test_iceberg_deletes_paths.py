"""Paths of data files in deletes: how they are written."""

import pytest
from delete_entries import entry, found, names, vector

from headrace.sources.iceberg._deletes import plain_path
from headrace.sources.tables._catalog import store_path


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
