"""Delete files that are not as they should be, and that nothing is read without its deletes."""

from __future__ import annotations

from typing import Any

import pytest
from numbered_tables import ids_in, loader_of, make_table, numbers
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from refused_tables import local, refused
from writers.catalogs import WritingCatalog
from writers.committing import data_files, describe_file
from writers.data_files import append_rows
from writers.delete_files import (
    append_delete_file,
    append_equality_deletes,
    append_position_deletes,
)
from writers.deletion_vectors import append_deletion_vectors

from headrace.errors import FileChangedError, ReadError, SkippedDataWarning

# --- delete files


def deletes_of_the_first(table: Table, kind: str) -> str:
    """Deletes 20 rows of the first file, by a file whose path is given."""
    path = data_files(table)[0].file_path
    if kind == "positions":
        return append_position_deletes(table, {path: range(20)})[0]
    if kind == "vector":
        append_deletion_vectors(table, {path: range(20)})
    else:
        return append_equality_deletes(table, ["id"], [(one,) for one in range(20)])
    (vector,) = local(table.location()).rglob("*.puffin")
    return f"file://{vector}"


KINDS = ["positions", "vector", "equality"]


def table_for(catalog: WritingCatalog, kind: str, **options: Any) -> Table:
    more = {"format-version": "3"} if kind == "vector" else {}
    return make_table(catalog, **options, **more)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_delete_file_that_is_gone(catalog: WritingCatalog, kind: str, num_workers: int) -> None:
    table = table_for(catalog, kind)
    first = data_files(table)[0].file_path
    path = local(deletes_of_the_first(table, kind))
    path.unlink()
    message = refused(ReadError, str(path), config=catalog, name="db.t", num_workers=num_workers)
    assert "its deletes cannot be read" in message
    assert kind == "equality" or str(local(first)) in message


@pytest.mark.parametrize("kind", KINDS)
def test_a_delete_file_that_is_none(catalog: WritingCatalog, kind: str) -> None:
    table = table_for(catalog, kind)
    path = local(deletes_of_the_first(table, kind))
    path.write_bytes(b"x" * path.stat().st_size)
    refused(ReadError, str(path), "its deletes cannot be read", config=catalog, name="db.t")


@pytest.mark.parametrize("options", [{}, {"split_rows": 7}, {"filters": [("id", "<", 9)]}], ids=str)
@pytest.mark.parametrize("kind", ["positions", "vector"])
def test_a_delete_of_rows_past_the_end(
    catalog: WritingCatalog, kind: str, options: dict[str, Any]
) -> None:
    table = table_for(catalog, kind, group_rows=10)
    path = data_files(table)[0].file_path
    append = append_position_deletes if kind == "positions" else append_deletion_vectors
    append(table, {path: [3, 40]})
    message = refused(ReadError, str(local(path)), config=catalog, name="db.t", **options)
    assert "names row 40" in message
    assert "40 rows" in message


def test_a_delete_file_in_avro(catalog: WritingCatalog) -> None:
    table = make_table(catalog)
    described = describe_file(
        path="file:///x/deletes.avro",
        file_format="avro",
        rows=1,
        size=10,
        content=DataFileContent.POSITION_DELETES,
    )
    append_delete_file(table, described)
    message = refused(ReadError, "/x/deletes.avro", "avro", config=catalog, name="db.t")
    assert "compact the table" in message


# --- on_error="skip"


def skipping(said: str, catalog: WritingCatalog, **options: Any) -> tuple[Any, list[int]]:
    """The loader and the ids of an epoch in which something is skipped, for a reason."""

    def read() -> tuple[Any, list[int]]:
        loader, _ = loader_of("db.t", catalog, on_error="skip", **options)
        return loader, sorted(ids_in(loader))

    with pytest.warns(SkippedDataWarning, match=said):
        return read()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("split_rows", [None, 15])
def test_a_data_file_that_is_broken_is_skipped(
    catalog: WritingCatalog, num_workers: int, split_rows: int | None
) -> None:
    table = make_table(catalog)
    path = local(data_files(table)[1].file_path)
    path.write_bytes(b"x" * path.stat().st_size)
    options = {"num_workers": num_workers, "split_rows": split_rows}
    loader, seen = skipping(path.name, catalog, **options)
    assert seen == [*range(40), *range(80, 120)]
    assert path.name in repr(loader.stats()["skipped_chunks"])


@pytest.mark.parametrize("kind", ["data", *KINDS])
def test_a_file_that_is_gone_is_not_skipped(catalog: WritingCatalog, kind: str) -> None:
    """As for files that vanish: an expired snapshot would be training on next to nothing."""
    table = table_for(catalog, kind)
    path = data_files(table)[0].file_path if kind == "data" else deletes_of_the_first(table, kind)
    local(path).unlink()
    message = refused(
        FileChangedError, local(path).name, config=catalog, name="db.t", on_error="skip"
    )
    assert "the snapshot has expired (refresh()" in message


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_read_without_its_deletes(
    catalog: WritingCatalog, kind: str, num_workers: int
) -> None:
    table = table_for(catalog, kind, group_rows=15)
    path = local(deletes_of_the_first(table, kind))
    append_rows(table, numbers(500, 30))
    path.write_bytes(b"x" * path.stat().st_size)
    _, seen = skipping(path.name, catalog, num_workers=num_workers, split_rows=15)
    # An equality delete is for all that is older, whatever it holds.
    older = [] if kind == "equality" else range(40, 120)
    assert seen == [*older, *range(500, 530)]


def test_rows_past_the_end_are_not_skipped_into_being_read(catalog: WritingCatalog) -> None:
    table = make_table(catalog)
    append_position_deletes(table, {data_files(table)[0].file_path: [0, 1, 999]})
    assert skipping("names row 999", catalog)[1] == list(range(40, 120))
