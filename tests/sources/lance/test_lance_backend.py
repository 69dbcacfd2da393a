"""Rows of a Lance dataset by index: those that are not deleted, of the version that was pinned."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lance_elsewhere import Elsewhere

from headrace.sources.lance.backend import LanceBackend

LIVE = [number for number in range(100) if number % 3 and not 30 <= number < 60]


def numbered(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    return pa.table({"id": list(numbers), "text": [f"row {number}" for number in numbers]})


@pytest.fixture(scope="module")
def deleted_from(elsewhere: Elsewhere, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four fragments, of which one is gone and the others have a third of their rows deleted."""
    uri = tmp_path_factory.mktemp("deleted") / "rows.lance"
    elsewhere.write(uri, numbered(0, 100), max_rows_per_file=30)
    elsewhere.change(uri, "delete", "id % 3 = 0")
    elsewhere.change(uri, "delete", "id >= 30 and id < 60")
    return uri


def test_rows_that_are_deleted_do_not_count(elsewhere: Elsewhere, deleted_from: Path) -> None:
    backend = LanceBackend(deleted_from)
    assert backend.num_rows == len(LIVE)
    assert backend.shard_rows.tolist() == [20, 20, 6]
    there = elsewhere.backend(deleted_from)
    assert there.take(range(len(LIVE)))["id"].to_pylist() == LIVE
    assert there.table()["id"].to_pylist() == LIVE
    assert [one["id"].to_pylist() for one in there.iter_batches([2, 0])] == [LIVE[40:], LIVE[:20]]
    for start, length in ((0, 46), (18, 5), (39, 7), (45, 1)):
        expected = LIVE[start : start + length]
        assert there.slice(start, length)["id"].to_pylist() == expected


def test_taking_keeps_order_and_repetitions(elsewhere: Elsewhere, deleted_from: Path) -> None:
    there = elsewhere.backend(deleted_from)
    indices = np.random.default_rng(5).integers(-len(LIVE), len(LIVE), 500)
    taken = there.take(indices)
    assert taken["id"].to_pylist() == [LIVE[index] for index in indices]
    assert taken["text"].to_pylist() == [f"row {LIVE[index]}" for index in indices]
    assert there.get_row(-1) == {"id": 98, "text": "row 98"}


def test_columns_come_as_they_are_named(elsewhere: Elsewhere, deleted_from: Path) -> None:
    there = elsewhere.backend(deleted_from)
    for table in (
        there.take([1], columns=["text", "id"]),
        there.slice(1, 1, columns=["text", "id"]),
    ):
        assert table.schema == pa.schema({"text": pa.string(), "id": pa.int64()})
        assert table.to_pylist() == [{"text": "row 2", "id": 2}]
    assert elsewhere.call(counted_without_columns, str(deleted_from)) == (3, 40)
    empty = there.take([], columns=["text"])
    assert (empty.num_rows, empty.schema.names) == (0, ["text"])


def counted_without_columns(uri: str) -> tuple[int, int]:
    """Here, for a pickle does not keep the number of rows of a table without columns."""
    backend = LanceBackend(uri)
    return backend.take([3, 3, 3], columns=[]).num_rows, backend.slice(2, 40, columns=[]).num_rows


def test_out_of_range_is_an_index_error(elsewhere: Elsewhere, deleted_from: Path) -> None:
    there = elsewhere.backend(deleted_from)
    for wrong in ([46], [-47], [0, 10**12]):
        with pytest.raises(IndexError):
            there.take(wrong)
    with pytest.raises(IndexError):
        there.slice(40, 7)


def test_shuffled_batches_hold_every_row_once(elsewhere: Elsewhere, deleted_from: Path) -> None:
    there = elsewhere.backend(deleted_from)
    first, again, other = (
        [row for batch in there.iter_batches(None, True, seed) for row in batch["id"].to_pylist()]
        for seed in (1, 1, 2)
    )
    assert sorted(first) == LIVE
    assert first == again
    assert first != other


def test_a_version_stays_what_it_was(elsewhere: Elsewhere, tmp_path: Path) -> None:
    uri = tmp_path / "rows.lance"
    elsewhere.write(uri, numbered(0, 10))
    before = LanceBackend(uri)
    elsewhere.change(uri, "tags.create", "first", 1)
    elsewhere.write(uri, numbered(10, 30), mode="append")
    elsewhere.change(uri, "delete", "id < 5")
    sent = pickle.dumps(before)
    assert len(sent) < 4000
    assert elsewhere.call(ids_of_pickled, sent) == list(range(10))
    for version, expected in (
        (None, range(5, 30)),
        (2, range(30)),
        ("first", range(10)),
    ):
        there = elsewhere.backend(uri, version=version)
        assert there.table()["id"].to_pylist() == list(expected)
    assert (before.version, before.num_rows) == (1, 10)


def ids_of_pickled(sent: bytes) -> Any:
    backend = pickle.loads(sent)
    return [*backend.take([0, 1, 2])["id"].to_pylist(), *backend.slice(3, 7)["id"].to_pylist()]


def _blob_table(kind: str, values: list[bytes | None]) -> pa.Table:
    import lance

    marked = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    if kind == "typed":
        field, column = lance.blob_field("image"), lance.blob_array(values)
    else:
        field, column = marked, pa.array(values, pa.large_binary())
    schema = pa.schema([field, pa.field("id", pa.int64())])
    return pa.table([column, pa.array(range(len(values)))], schema=schema)


def write_blobs(uri: str, kind: str, values: list[bytes | None], version: str) -> None:
    import lance

    table = _blob_table(kind, values)
    lance.write_dataset(table, uri, max_rows_per_file=20, data_storage_version=version)
    lance.dataset(uri).delete("id % 10 = 5")


@pytest.mark.parametrize(
    ("kind", "storage"), [("marked", "2.0"), ("marked", "2.2"), ("typed", "2.2")]
)
def test_blobs_come_as_bytes(elsewhere: Elsewhere, tmp_path: Path, kind: str, storage: str) -> None:
    values = [None if n % 7 == 3 else b"" if n % 7 == 4 else bytes([n]) * n * 50 for n in range(60)]
    uri = tmp_path / "blobs.lance"
    elsewhere.call(write_blobs, str(uri), kind, values, storage)
    live = [number for number in range(60) if number % 10 != 5]
    there = elsewhere.backend(uri)
    wanted = pa.schema({"image": pa.large_binary(), "id": pa.int64()})
    indices = [40, 3, 3, 0, 53, 10, 9, 4]
    taken = there.take(indices)
    assert taken.schema.equals(wanted, check_metadata=True)
    assert taken["image"].to_pylist() == [values[live[index]] for index in indices]
    assert taken["id"].to_pylist() == [live[index] for index in indices]
    sliced = there.slice(10, 20)
    assert sliced.schema.equals(wanted, check_metadata=True)
    assert sliced["image"].to_pylist() == [values[number] for number in live[10:30]]
    alone = there.take([7, 1], columns=["image"])
    assert alone.to_pylist() == [{"image": values[live[7]]}, {"image": values[live[1]]}]
    streamed = pa.concat_tables(there.stream(0, 54, wanted, 4096))
    assert streamed["image"].to_pylist() == [values[number] for number in live]


def write_halves(uri: str) -> None:
    import lance

    halves = pa.array([b"\x80\x3f", b"\x00\x40", None], pa.binary(2))
    named = {"ARROW:extension:name": "lance.bfloat16", "ARROW:extension:metadata": ""}
    schema = pa.schema([pa.field("half", pa.binary(2), metadata=named)])
    lance.write_dataset(pa.table([halves], schema=schema), uri)


def test_types_of_lance_come_as_what_they_are_stored_as(
    elsewhere: Elsewhere, tmp_path: Path
) -> None:
    uri = tmp_path / "halves.lance"
    elsewhere.call(write_halves, str(uri))
    stored = pa.schema({"half": pa.binary(2)})
    assert LanceBackend(uri).schema == stored
    there = elsewhere.backend(uri)
    assert there.take([2]).schema == there.slice(0, 1).schema == stored
    assert there.take([2, 1])["half"].to_pylist() == [None, b"\x00\x40"]
    assert there.slice(0, 2)["half"].to_pylist() == [b"\x80\x3f", b"\x00\x40"]


def test_streams_come_in_blocks_of_about_the_size_asked_for(
    elsewhere: Elsewhere, tmp_path: Path
) -> None:
    uri = tmp_path / "wide.lance"
    elsewhere.write(uri, pa.table({"id": range(3000), "body": [bytes(1000)] * 3000}))
    there = elsewhere.backend(uri)
    blocks = there.stream(100, 2500, there.schema(), 200_000)
    assert pa.concat_tables(blocks)["id"].to_pylist() == list(range(100, 2600))
    assert all(150_000 < block.nbytes < 250_000 for block in blocks[1:-1])
    assert len(blocks) > 10
