"""Arrow IPC: files and streams, compression, dictionaries, and what is no such file."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, ipc

from headrace.errors import ReadError
from headrace.model import DataFileInfo, FileSplit, RowGroups, RowRange
from headrace.sources.arrow._format import ArrowFormat, read_batch_index
from headrace.storage import LocalStore
from headrace.testing import FormatContract, assert_same_rows

STORE = LocalStore()


class TestArrowFileContract(FormatContract):
    def format(self) -> ArrowFormat:
        return ArrowFormat()

    def write(self, path: Path, table: pa.Table) -> None:
        write_file(path, table, self.rows_per_group)


class TestArrowCompressedContract(TestArrowFileContract):
    def write(self, path: Path, table: pa.Table) -> None:
        write_file(path, table, self.rows_per_group, compression="zstd")


class TestArrowStreamContract(FormatContract):
    truncation_shows = False
    rows_per_group = None

    def format(self) -> ArrowFormat:
        return ArrowFormat()

    def write(self, path: Path, table: pa.Table) -> None:
        with ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=64)


def write_file(path: Path, table: pa.Table, rows_per_batch: int, **options: object) -> None:
    with ipc.new_file(path, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)


def read_back(path: Path, schema: pa.Schema, rows: RowRange | None = None) -> pa.Table:
    chunk = FileSplit(DataFileInfo(str(path)), rows)
    return pa.concat_tables(ArrowFormat().read(STORE, chunk, schema, 1 << 20))


def batch_rows(path: Path) -> list[int]:
    groups = ArrowFormat().inspect(STORE, DataFileInfo(str(path))).row_groups
    assert groups is not None
    return groups.rows.tolist()


V4, V5 = ipc.MetadataVersion.V4, ipc.MetadataVersion.V5


@pytest.mark.parametrize(
    ("compression", "version"), [(None, V4), (None, V5), ("lz4", V5), ("zstd", V5)]
)
@pytest.mark.parametrize("legacy", [False, True])
def test_batches_are_counted_without_their_bodies(
    tmp_path: Path, compression: str | None, version: ipc.MetadataVersion, legacy: bool
) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"id": range(1_000), "x": np.arange(1_000) / 7, "s": ["word"] * 1_000})
    options = {"metadata_version": version, "use_legacy_format": legacy}
    write_file(path, table, 300, compression=compression, **options)
    assert batch_rows(path) == [300, 300, 300, 100]
    assert_same_rows(read_back(path, table.schema, RowRange(250, 400)), table.slice(250, 400))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_sizes_of_compressed_batches_are_those_of_the_rows(
    tmp_path: Path, compression: str
) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"zero": np.zeros(50_000), "noise": np.random.default_rng(1).random(50_000)})
    write_file(path, table, 10_000, compression=compression)
    groups = ArrowFormat().inspect(STORE, DataFileInfo(str(path))).row_groups
    assert groups is not None
    assert path.stat().st_size < table.nbytes * 0.7
    assert groups.size_bytes.sum() == pytest.approx(table.nbytes, rel=0.05)


def test_a_file_without_batches_and_batches_without_rows(tmp_path: Path) -> None:
    path, schema = tmp_path / "a.arrow", pa.schema([("id", pa.int64())])
    with ipc.new_file(path, schema):
        pass
    assert batch_rows(path) == []
    with ipc.new_file(path, schema) as writer:
        for ids in ([], [1, 2], [], [3], []):
            writer.write_batch(pa.record_batch([pa.array(ids, pa.int64())], schema=schema))
    assert batch_rows(path) == [0, 2, 0, 1, 0]
    assert read_back(path, schema)["id"].to_pylist() == [1, 2, 3]
    assert read_back(path, schema, RowRange(1, 2))["id"].to_pylist() == [2, 3]


def growing_dictionaries() -> list[pa.RecordBatch]:
    words = [["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]]
    return [
        pa.record_batch(
            {"word": pa.DictionaryArray.from_arrays(pa.array([0, len(known) - 1]), known)}
        )
        for known in words
    ]


@pytest.mark.parametrize("make_writer", [ipc.new_file, ipc.new_stream])
def test_dictionaries_that_grow(tmp_path: Path, make_writer: Callable[..., Any]) -> None:
    path, batches = tmp_path / "a.arrow", growing_dictionaries()
    options = ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with make_writer(path, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    got = read_back(path, batches[0].schema)
    assert pa.types.is_dictionary(got.schema.field("word").type)
    assert got["word"].to_pylist() == ["a", "b", "a", "c", "a", "d"]
    last = read_back(path, batches[0].schema, RowRange(3, 3))
    assert last["word"].to_pylist() == ["c", "a", "d"]


def test_a_stream_is_one_group_and_known_by_its_content(tmp_path: Path) -> None:
    path, table = tmp_path / "a.arrow", pa.table({"id": range(100)})
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=30)
    facts = ArrowFormat().inspect(STORE, DataFileInfo(str(path)))
    assert read_batch_index(pa.OSFile(str(path))).rows.tolist() == [30, 30, 30, 10]
    assert batch_rows(path) == [100]
    assert facts.record_count == 100
    assert not facts.splittable


def test_a_stream_cut_inside_a_message_is_an_error(tmp_path: Path) -> None:
    path, table = tmp_path / "a.arrows", pa.table({"id": range(100)})
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    whole = path.read_bytes()
    for stop in (0, 5, 100, len(whole) // 2, len(whole) - 20):
        path.write_bytes(whole[:stop])
        with pytest.raises(ReadError, match=r"a\.arrows"):
            ArrowFormat().inspect(STORE, DataFileInfo(str(path)))


def test_only_wanted_columns_are_fetched(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"id": range(1_000), "wide": [bytes(10_000)] * 1_000})
    write_file(path, table, 100)
    store = CountingStore()
    chunk = FileSplit(DataFileInfo(str(path)))
    list(ArrowFormat().read(store, chunk, table.select(["id"]).schema, 1 << 20))
    assert 8_000 <= store.bytes_read[0] < 200_000


def test_rows_can_be_written_to_without_harm_to_the_file(tmp_path: Path) -> None:
    path, table = tmp_path / "a.arrow", pa.table({"id": range(100)})
    write_file(path, table, 100)
    column = read_back(path, table.schema)["id"].chunk(0)
    address = column.buffers()[1].address
    np.ctypeslib.as_array((ctypes.c_int64 * 100).from_address(address))[:] = -1
    assert_same_rows(read_back(path, table.schema), table)


@pytest.mark.parametrize("columns", [1, 2, 3, 7])
def test_values_are_aligned_in_memory(tmp_path: Path, columns: int) -> None:
    """Wherever in the file a batch is, and whatever the length of its metadata."""
    rows = pa.table({f"column {i}": pa.array(range(300), pa.float64()) for i in range(columns)})
    rows = rows.append_column("text", pa.array(map(str, range(300))))
    write_file(tmp_path / "a.arrow", rows, 100)
    found = read_back(tmp_path / "a.arrow", rows.schema)
    assert found.equals(rows)
    assert [chunk.buffers()[1].address % 8 for chunk in found["column 0"].chunks] == [0, 0, 0]


def test_what_a_file_is_like_is_asked_again_when_it_is_another(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    for rows in (pa.table({"a": range(300)}), pa.table({"a": range(700, 1000), "b": range(300)})):
        write_file(path, rows, 100)
        file = STORE.status(str(path))
        assert file is not None
        for first in (0, 250):
            read = ArrowFormat().read(STORE, FileSplit(file, RowRange(first, 50)), rows.schema, 1)
            assert pa.concat_tables(read).equals(rows.slice(first, 50))


def test_buffers_shorter_than_their_rows_are_an_error(tmp_path: Path) -> None:
    """pyarrow writes compressed bodies with old metadata, but then takes them for plain ones."""
    path, table = tmp_path / "a.arrow", pa.table({"id": range(1_000)})
    write_file(path, table, 1_000, compression="zstd", metadata_version=V4)
    with pytest.raises(ReadError, match=r"a\.arrow: .* too small"):
        read_back(path, table.schema)


def test_feather_v1_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "old.feather"
    path.write_bytes(b"FEA1" + bytes(64) + b"FEA1")
    with pytest.raises(ReadError, match=r"old\.feather: "):
        ArrowFormat().inspect(STORE, DataFileInfo(str(path)))


def test_feather_v2_is_arrow(tmp_path: Path) -> None:
    path, table = tmp_path / "new.feather", pa.table({"id": range(100)})
    feather.write_feather(table, str(path), chunksize=40)
    assert batch_rows(path) == [40, 40, 20]
    assert_same_rows(read_back(path, table.schema), table)


def test_few_rows_do_not_hold_their_batch_in_memory(tmp_path: Path) -> None:
    path, table = tmp_path / "a.arrow", pa.table({"id": range(30_000)})
    write_file(path, table, 30_000)
    got = read_back(path, table.schema, RowRange(20_000, 30))
    assert_same_rows(got, table.slice(20_000, 30))
    assert got.get_total_buffer_size() < 1_000


def test_rows_beyond_the_file_are_an_error(tmp_path: Path) -> None:
    table = pa.table({"id": range(100)})
    write_file(tmp_path / "a.arrow", table, 40)
    with ipc.new_stream(tmp_path / "b.arrow", table.schema) as writer:
        writer.write_table(table)
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(ReadError, match="rows 90-101: the file has 100 rows only"):
            read_back(path, table.schema, RowRange(90, 11))


def test_counts_that_are_not_those_of_the_file_are_an_error(tmp_path: Path) -> None:
    path, table = tmp_path / "a.arrow", pa.table({"id": range(100)})
    write_file(path, table, 40)
    wrong = DataFileInfo(
        str(path), record_count=100, row_groups=RowGroups.of([50, 40, 10], [1, 1, 1])
    )
    with pytest.raises(ReadError, match="record batch 0 has 40 rows and not 50"):
        list(ArrowFormat().read(STORE, FileSplit(wrong), table.schema, 1 << 20))


class CountingFile(io.FileIO):
    """Adds up what is read of it."""

    def __init__(self, path: str, bytes_read: list[int]) -> None:
        super().__init__(path)
        self.bytes_read = bytes_read

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(-1 if size is None else size)
        self.bytes_read[0] += len(data)
        return data


class CountingStore(LocalStore):
    """A local store that knows how many bytes were read of its files."""

    bytes_read: ClassVar[list[int]] = [0]

    def open(self, file: DataFileInfo) -> pa.NativeFile:
        self.bytes_read[0] = 0
        return pa.PythonFile(CountingFile(file.path, self.bytes_read), mode="r")
