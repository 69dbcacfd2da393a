"""Tables that are damaged or beyond us: an error that says so, and never rows that are gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from numbered_tables import SCHEMA, all_ids, loader_of, make_table, numbers
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from writers.catalogs import WritingCatalog
from writers.committing import commit_files, data_files, describe_file, live_entries
from writers.data_files import append_file, append_rows, new_data_path
from writers.delete_files import append_equality_deletes, append_position_deletes
from writers.deletion_vectors import append_deletion_vectors, puffin_file, vector_blob

from headrace import IcebergDataset, NothingFoundError, OptionError, ReadError

NAME = "tests.db.t"
ROWS = 40


@pytest.fixture
def table(catalog: WritingCatalog) -> Table:
    """Two files of 40 rows in groups of 9, version 2."""
    return make_table(catalog, files=2, rows=ROWS, group_rows=9)


@pytest.fixture
def table_3(catalog: WritingCatalog) -> Table:
    """The same in version 3."""
    return make_table(catalog, files=2, rows=ROWS, group_rows=9, **{"format-version": "3"})


def paths_of(table: Table) -> list[str]:
    return [file.file_path for file in data_files(table)]


def local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def read(table: Table, **options: Any) -> list[int]:
    return all_ids(NAME, table.catalog.properties_for_users, **options)


def refusal(table: Table, **options: Any) -> str:
    """What reading says; it has to fail for each of the ways to read."""
    config = table.catalog.properties_for_users
    said = ""
    for more in ({}, {"lanes": 4, "split_rows": 5}, {"columns": ["x"]}):
        with pytest.raises(ReadError) as refused:
            list(loader_of(NAME, config, **more, **options)[0])
        said = str(refused.value)
    return said


def delete_file(table: Table, path: str, **described: Any) -> None:
    """An entry for a delete file, as it is described."""
    described = {"size": 100, "rows": 1, **described}
    commit_files(table, added=[describe_file(path=path, **described)])


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
@pytest.mark.parametrize("place", [ROWS, 10**12])
def test_a_position_past_the_end(table: Table, file_format: str, place: int) -> None:
    first, _ = paths_of(table)
    (deletes,) = append_position_deletes(table, {first: [3, place]}, file_format=file_format)
    said = refusal(table)
    assert str(local(first)) in said
    assert str(local(deletes)) in said
    assert f"{place}" in said
    assert f"{ROWS} rows" in said


def test_a_negative_position(table: Table) -> None:
    first, _ = paths_of(table)
    append_position_deletes(table, {first: [-1, 3]})
    assert str(local(first)) in refusal(table)


def test_a_vector_that_goes_past_the_end(table_3: Table) -> None:
    first, _ = paths_of(table_3)
    (deletes,) = append_deletion_vectors(table_3, {first: [3, ROWS]})
    said = refusal(table_3)
    assert str(local(first)) in said
    assert str(local(deletes)) in said
    assert f"{ROWS} rows" in said


def test_a_missing_data_file(table: Table) -> None:
    first, _ = paths_of(table)
    local(first).unlink()
    said = refusal(table)
    assert str(local(first)) in said


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_a_missing_file_of_positions(table: Table, file_format: str) -> None:
    first, _ = paths_of(table)
    (deletes,) = append_position_deletes(table, {first: [3]}, file_format=file_format)
    local(deletes).unlink()
    said = refusal(table)
    assert str(local(deletes)) in said
    assert str(local(first)) in said


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_a_missing_file_of_values(table: Table, file_format: str) -> None:
    deletes = append_equality_deletes(table, ["id"], [(3,)], file_format=file_format)
    local(deletes).unlink()
    assert str(local(deletes)) in refusal(table)


def test_a_missing_file_of_vectors(table_3: Table) -> None:
    first, _ = paths_of(table_3)
    (deletes,) = append_deletion_vectors(table_3, {first: [3]})
    local(deletes).unlink()
    said = refusal(table_3)
    assert str(local(deletes)) in said
    assert str(local(first)) in said


@pytest.mark.parametrize("kind", ["positions", "values", "vector", "data"])
def test_a_file_that_was_cut_short(table_3: Table, kind: str) -> None:
    first, _ = paths_of(table_3)
    write: dict[str, Callable[[], str]] = {
        "positions": lambda: append_position_deletes(table_3, {first: [3]})[0],
        "values": lambda: append_equality_deletes(table_3, ["id"], [(3,)]),
        "vector": lambda: append_deletion_vectors(table_3, {first: [3]})[0],
        "data": lambda: first,
    }
    place = local(write[kind]())
    place.write_bytes(place.read_bytes()[:20])
    assert str(place) in refusal(table_3)


@pytest.mark.parametrize("at", [4, 9, 14, -1], ids=["length", "magic", "bitmap", "checksum"])
def test_a_vector_with_a_wrong_byte(table_3: Table, at: int) -> None:
    first, _ = paths_of(table_3)
    (deletes,) = append_deletion_vectors(table_3, {first: [3, 4]})
    vector = next(
        entry.data_file for entry in live_entries(table_3) if entry.data_file.file_path == deletes
    )
    offset, length = vector._data[18:20]
    content = bytearray(local(deletes).read_bytes())
    content[at if at >= 0 else offset + length - 1] ^= 0xFF
    local(deletes).write_bytes(content)
    assert str(local(deletes)) in refusal(table_3)


def test_a_vector_of_another_number_of_rows_than_the_manifest_says(table_3: Table) -> None:
    first, _ = paths_of(table_3)
    blob = vector_blob([1, 2, 3])
    place = new_data_path(table_3, "puffin")
    content = puffin_file({first: blob}, {first: 3})
    local(place).write_bytes(content)
    delete_file(
        table_3,
        place,
        file_format="puffin",
        rows=2,
        size=len(content),
        content=DataFileContent.POSITION_DELETES,
        referenced_data_file=first,
        content_offset=4,
        content_size_in_bytes=len(blob),
    )
    assert str(local(place)) in refusal(table_3)


def test_two_vectors_of_one_file(table_3: Table) -> None:
    first, _ = paths_of(table_3)
    append_deletion_vectors(table_3, {first: [3]})
    vector = next(
        entry.data_file for entry in live_entries(table_3) if entry.data_file._data[18] is not None
    )
    commit_files(table_3, added=[vector])
    said = refusal(table_3)
    assert "two deletion vectors" in said
    assert first in said


def test_a_manifest_that_counts_other_rows_than_the_file_has(table: Table) -> None:
    first, _ = paths_of(table)
    commit_files(table, removed=lambda file: file.file_path == first)
    append_file(
        table, first, file_format="parquet", rows=ROWS - 1, size=local(first).stat().st_size
    )
    said = refusal(table)
    assert str(local(first)) in said
    assert str(ROWS - 1) in said


def test_data_files_of_a_format_that_is_not_read(table: Table) -> None:
    append_file(table, "file:///tmp/some.avro", file_format="avro", rows=1, size=10)
    said = refusal(table)
    assert "some.avro" in said
    assert "Parquet and ORC" in said
    assert "rewrite" in said


@pytest.mark.parametrize(
    "described",
    [
        {"content": DataFileContent.POSITION_DELETES},
        {"content": DataFileContent.EQUALITY_DELETES, "equality_ids": [1]},
    ],
    ids=["positions", "values"],
)
def test_delete_files_of_a_format_that_is_not_read(table: Table, described: Any) -> None:
    delete_file(table, "file:///tmp/some.avro", file_format="avro", **described)
    said = refusal(table)
    assert "some.avro" in said
    assert "avro" in said.replace("some.avro", "").lower()


def test_encrypted_files(table: Table) -> None:
    first, _ = paths_of(table)
    commit_files(table, removed=lambda file: file.file_path == first)
    size = local(first).stat().st_size
    described = {"file_format": "parquet", "rows": ROWS, "size": size, "key_metadata": b"key"}
    commit_files(table, added=[describe_file(path=first, **described)])
    assert "encrypted" in refusal(table)


def test_encrypted_delete_files(table: Table) -> None:
    delete_file(
        table,
        "file:///tmp/some.parquet",
        file_format="parquet",
        content=DataFileContent.POSITION_DELETES,
        key_metadata=b"key",
    )
    assert "encrypted" in refusal(table)


def test_equality_deletes_by_a_field_that_never_was(table: Table) -> None:
    delete_file(
        table,
        "file:///tmp/some.parquet",
        file_format="parquet",
        content=DataFileContent.EQUALITY_DELETES,
        equality_ids=[99],
    )
    assert "99" in refusal(table)


def test_equality_deletes_that_do_not_say_by_what(table: Table) -> None:
    delete_file(
        table,
        "file:///tmp/some.parquet",
        file_format="parquet",
        content=DataFileContent.EQUALITY_DELETES,
    )
    assert "some.parquet" in refusal(table)


@pytest.mark.parametrize("columns", [["other", "pos"], ["file_path", "other"]])
def test_a_file_of_positions_without_its_columns(table: Table, columns: list[str]) -> None:
    place = new_data_path(table, "parquet")
    pq.write_table(pa.table([["a"], [1]], names=columns), local(place))
    delete_file(
        table,
        place,
        file_format="parquet",
        size=local(place).stat().st_size,
        content=DataFileContent.POSITION_DELETES,
    )
    assert str(local(place)) in refusal(table)


def test_a_file_of_values_without_its_column(table: Table) -> None:
    place = new_data_path(table, "orc")
    orc.write_table(pa.table({"id": [1]}), str(local(place)))
    delete_file(
        table,
        place,
        file_format="orc",
        size=local(place).stat().st_size,
        content=DataFileContent.EQUALITY_DELETES,
        equality_ids=[1],
    )
    assert str(local(place)) in refusal(table)


def test_data_files_without_ids_and_no_mapping_of_names(table: Table) -> None:
    place = new_data_path(table, "parquet")
    pq.write_table(numbers(0, 3), local(place))
    size = local(place).stat().st_size
    append_file(table, place, file_format="parquet", rows=3, size=size)
    said = refusal(table)
    assert str(local(place)) in said
    assert "name-mapping" in said


def test_rows_whose_deletes_are_broken_are_skipped_with_them(table: Table) -> None:
    """Leaving out what cannot be read must not leave out deletes, and give the rows."""
    first, _ = paths_of(table)
    (deletes,) = append_position_deletes(table, {first: [3]})
    local(deletes).write_bytes(b"PAR1" + bytes(local(deletes).stat().st_size - 8) + b"PAR1")
    with pytest.warns(UserWarning, match="skipped") as warned:
        left = read(table, on_error="skip")
    assert str(local(deletes)) in "".join(str(one.message) for one in warned)
    assert left == list(range(ROWS, 2 * ROWS))


def test_deletes_that_vanished_are_never_skipped(table: Table) -> None:
    first, _ = paths_of(table)
    (deletes,) = append_position_deletes(table, {first: [3]})
    local(deletes).unlink()
    assert str(local(deletes)) in refusal(table, on_error="skip")


def test_a_missing_manifest(table: Table) -> None:
    (manifest, *_) = table.current_snapshot().manifests(table.io)
    local(manifest.manifest_path).unlink()
    with pytest.raises(ReadError, match=local(manifest.manifest_path).name):
        read(table)


def test_tables_and_snapshots_that_are_not_there(table: Table) -> None:
    config = table.catalog.properties_for_users
    with pytest.raises(NothingFoundError, match=r"db\.nothing"):
        IcebergDataset("tests.db.nothing", config)
    with pytest.raises(NothingFoundError, match="no snapshot 12345"):
        IcebergDataset(NAME, config, snapshot_id=12345)
    for wanted in ({"tag": "no"}, {"branch": "no"}):
        with pytest.raises(NothingFoundError, match="'no'"):
            IcebergDataset(NAME, config, **wanted)
    with pytest.raises(NothingFoundError, match="no snapshot at"):
        IcebergDataset(NAME, config, as_of=1)
    with pytest.raises(OptionError, match="exclude each other"):
        IcebergDataset(NAME, config, snapshot_id=1, tag="a")


def test_a_snapshot_that_expired(table: Table) -> None:
    config = table.catalog.properties_for_users
    old = table.snapshots()[0].snapshot_id
    loader, _ = loader_of(NAME, config, snapshot_id=old)
    next(iter(loader))
    state = loader.state_dict()
    assert all_ids(NAME, config, snapshot_id=old) == list(range(ROWS))
    table.maintenance.expire_snapshots().by_id(old).commit()
    with pytest.raises(NothingFoundError, match="expired"):
        loader_of(NAME, config, snapshot_id=old)
    again, _ = loader_of(NAME, config)
    with pytest.raises(NothingFoundError, match="expired"):
        again.load_state_dict(state)


def test_a_table_without_snapshots(catalog: WritingCatalog) -> None:
    catalog.create_table("db.t", SCHEMA)
    assert all_ids(NAME, catalog.properties_for_users) == []


def test_deletes_of_rows_that_came_later_are_none(table: Table) -> None:
    """A delete by value is of what was older; that it stands first in the list is no matter."""
    append_equality_deletes(table, ["id"], [(1,), (41,)])
    append_rows(table, numbers(41, 1))
    assert read(table) == [0, *range(2, 2 * ROWS)]
