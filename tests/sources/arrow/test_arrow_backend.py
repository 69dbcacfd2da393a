"""``ArrowBackend``: which shards there are, what is wrong with them, and what of them is held."""

from __future__ import annotations

import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc
from warm_interpreters import run_warm

from headrace.access import RowDataset
from headrace.errors import (
    FileChangedError,
    NothingFoundError,
    OptionError,
    ReadError,
    SchemaError,
)
from headrace.sources.arrow.backend import ArrowBackend
from headrace.sources.files._source import DecodedGroup, decoded_groups


def numbered(first: int, rows: int) -> pa.Table:
    ids = range(first, first + rows)
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [f"{i}" * (i % 7) for i in ids]})


def write(
    path: Path, table: pa.Table, *, batch_rows: int = 10, compression: str | None = None
) -> Path:
    options = ipc.IpcWriteOptions(compression=compression)
    with ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=batch_rows)
    return path


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Three shards of 40 rows."""
    return [write(tmp_path / f"{n}.arrow", numbered(40 * n, 40)) for n in range(3)]


def described(shards: list[Path]) -> ArrowBackend:
    return ArrowBackend(shards, shard_row_counts=[40, 40, 40], schema=numbered(0, 1).schema)


# --- which shards


def test_a_list_keeps_its_order_and_all_else_is_sorted(shards: list[Path]) -> None:
    assert ArrowBackend(shards[::-1]).get_row(0)["id"] == 80
    assert ArrowBackend(shards[::-1]).shard_names == [str(shard) for shard in shards[::-1]]
    for source in (shards[0].parent, str(shards[0].parent / "*.arrow")):
        assert ArrowBackend(source).take([0, 40, 80])["id"].to_pylist() == [0, 40, 80]
    assert ArrowBackend(shards[1]).num_rows == 40


def test_what_is_said_of_shards_is_believed_until_they_are_read(shards: list[Path]) -> None:
    shards[1].write_bytes(b"nothing of the kind")
    backend = described(shards)
    assert backend.take([0, 119])["id"].to_pylist() == [0, 119]
    with pytest.raises(ReadError, match=r"1\.arrow"):
        backend.take([0, 40])


def test_wrong_counts(shards: list[Path]) -> None:
    schema = numbered(0, 1).schema
    backend = ArrowBackend(shards, shard_row_counts=[40, 39, 40], schema=schema)
    with pytest.raises(ReadError, match=r"1\.arrow has 40 rows, and not 39"):
        backend.take([40])
    with pytest.raises(ReadError, match=r"0\.arrow has 40 rows, and not 41"):
        ArrowBackend(shards, shard_row_counts=[41, 40, 40])
    with pytest.raises(OptionError, match="2 counts for 3 shards"):
        ArrowBackend(shards, shard_row_counts=[40, 40])
    with pytest.raises(OptionError, match="-1"):
        ArrowBackend(shards, shard_row_counts=[40, -1, 40])


def test_options_that_do_not_go_together(shards: list[Path]) -> None:
    with pytest.raises(OptionError, match="either"):
        ArrowBackend()
    with pytest.raises(OptionError, match="either"):
        ArrowBackend(shards, table=numbered(0, 1))
    with pytest.raises(OptionError, match="table"):
        ArrowBackend(table=numbered(0, 1), shard_row_counts=[1])
    with pytest.raises(NothingFoundError):
        ArrowBackend(shards[0].parent / "none.arrow")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(SchemaError, match="same name"):
        ArrowBackend(table=twice)


# --- what is wrong with them


def test_shards_with_other_types_and_columns(shards: list[Path]) -> None:
    """They are brought to one schema, out of maps or not."""
    table = numbered(40, 40)
    table = table.set_column(0, "id", table["id"].cast(pa.int32()))
    write(shards[1], table.append_column("more", table["id"]))
    backend, rows = ArrowBackend(shards), [119, 41, 0]
    assert backend.schema.names == ["id", "text", "more"]
    assert backend.schema.field("id").type == pa.int64()
    for taken in (backend.take(rows), pa.Table.from_pylist(list(map(backend.get_row, rows)))):
        assert taken["id"].to_pylist() == rows
        assert taken["more"].to_pylist() == [None, 41, None]
    assert backend.take([0, 1], columns=["id"])["id"].to_pylist() == [0, 1]
    assert described(shards).take(rows)["id"].to_pylist() == rows
    write(shards[1], table.set_column(0, "id", pa.array(["x"] * 40)))
    with pytest.raises(SchemaError, match=r"'id' is int64 in .*0\.arrow and string in .*1\.arrow"):
        ArrowBackend(shards)
    with pytest.raises(ReadError, match=r"1\.arrow.*'id'"):
        described(shards).take([45])
    write(shards[1], table.drop_columns(["text"]))
    with pytest.raises(SchemaError, match=r"1\.arrow has no column 'text'"):
        described(shards).take([45])


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file(shards: list[Path], part: float) -> None:
    whole = shards[2].read_bytes()
    shards[2].write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(ReadError, match=r"2\.arrow"):
        ArrowBackend(shards)
    backend = described(shards)
    with pytest.raises(ReadError, match=r"2\.arrow"):
        backend.take([0, 119])
    with pytest.raises(ReadError, match=r"2\.arrow"):
        backend.slice(70, 20)


def test_a_truncated_stream(tmp_path: Path) -> None:
    path, table = tmp_path / "a.arrows", numbered(0, 40)
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(ReadError, match=r"a\.arrows.*byte"):
        ArrowBackend(path)


def test_a_shard_that_was_written_again(shards: list[Path]) -> None:
    backend = ArrowBackend(shards)
    os.utime(shards[1], ns=(1, 1))  # of the same size, and yet not the same
    assert backend.take([0])["id"].to_pylist() == [0]
    with pytest.raises(FileChangedError, match=r"1\.arrow"):
        backend.take([41])
    os.remove(shards[2])
    with pytest.raises(FileChangedError, match=r"2\.arrow"):
        backend.slice(80, 1)


def test_offsets_that_point_nowhere(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", pa.table({"text": ["abc"] * 10}))
    offsets = np.arange(0, 31, 3, dtype=np.int32).tobytes()
    assert path.read_bytes().count(offsets) == 1
    wrong = np.arange(0, 31, 3, dtype=np.int32)
    for value in (2**31 - 1, -5, 31):
        wrong[6] = value
        path.write_bytes(path.read_bytes().replace(offsets, wrong.tobytes()))
        backend = ArrowBackend(path)
        assert backend.take([0, 9, 3])["text"].to_pylist() == ["abc"] * 3
        with pytest.raises(ReadError, match=r"a\.arrow, row 5: .*damaged"):
            backend.take([0, 5, 1])
        offsets = wrong.tobytes()


def test_a_batch_whose_buffers_are_too_short(tmp_path: Path) -> None:
    """The header of the last batch claims more rows than its buffers hold."""
    path = write(tmp_path / "a.arrow", pa.table({"id": range(25)}), batch_rows=13)
    data = bytearray(path.read_bytes())
    twelve, million = np.int64(12).tobytes(), np.int64(10**6).tobytes()
    for _ in range(2):  # the length of the batch, and that of its column
        last = data.rindex(twelve)
        data[last : last + 8] = million
    path.write_bytes(data)
    backend = ArrowBackend(path)
    assert backend.num_rows == 13 + 10**6
    assert backend.take([12])["id"].to_pylist() == [12]
    with pytest.raises(ReadError, match=r"a\.arrow, record batch 1: .*[Bb]uffer"):
        backend.take([24])


# --- what is held


def test_open_shards_take_no_file_descriptors(tmp_path: Path) -> None:
    count = 1100
    for number in range(count):
        write(tmp_path / f"{number:04}.arrow", numbered(10 * number, 10))
    code = f"""
import resource
import numpy as np
from headrace.sources.arrow.backend import ArrowBackend

resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
backend = ArrowBackend({str(tmp_path)!r})
rows = np.random.default_rng(0).permutation({10 * count})
assert backend.take(rows)["id"].to_pylist() == rows.tolist()
for start in range(0, {10 * count}, 500):
    some = rows[start : start + 50]
    assert backend.take(some, columns=["text"]).num_rows == 50
    assert backend.take(some[:12])["id"].to_pylist() == some[:12].tolist()
    assert backend.slice(start, 50)["id"].to_pylist() == list(range(start, start + 50))
batches = list(backend.iter_batches())
table, piece = backend.table, backend.slice(0, {10 * count})
assert table["id"].to_pylist() == piece["id"].to_pylist() == list(range({10 * count}))
assert sum(batch.num_rows for batch in batches) == {10 * count}
del batches, table, piece
backend.take([0])
with open("/proc/self/maps") as maps:
    print(sum(".arrow" in line for line in maps))
"""
    done = run_warm("-c", code)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == count


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how memory is mapped")
def test_nothing_is_read_ahead_for_rows_that_are_picked(shards: list[Path]) -> None:
    backend = ArrowBackend(shards)
    taken = backend.take([1, 41])
    with open("/proc/self/smaps") as maps:
        text = maps.read()
    flags = text[text.index(str(shards[0])) :].partition("VmFlags:")[2].splitlines()[0].split()
    assert "rr" in flags
    assert taken.num_rows == 2


def test_decoded_batches_are_kept_within_bounds(tmp_path: Path) -> None:
    """Of 480 MiB of decompressed batches, one row each."""
    buffers = [None, pa.py_buffer(bytes(1 << 20))]
    zeros = pa.FixedSizeBinaryArray.from_buffers(pa.binary(1 << 14), 64, buffers)
    nothing = pa.table({"data": zeros})
    path = tmp_path / "a.arrow"
    with ipc.new_file(path, nothing.schema, options=ipc.IpcWriteOptions(compression="lz4")) as sink:
        for _ in range(480):
            sink.write_table(nothing)
    backend = ArrowBackend(path)
    decoded_groups.add(
        "nothing", DecodedGroup(pa.table({}), None), limit_bytes=0
    )  # pushes out all others
    before = pa.total_allocated_bytes()
    for start in range(0, 480, 40):
        backend.take(np.arange(start, start + 40) * 64)
        assert pa.total_allocated_bytes() - before < 300 << 20
    assert pa.total_allocated_bytes() - before > 200 << 20


def test_of_a_slice_of_a_table_only_its_rows_are_pickled() -> None:
    large = pa.table(
        {
            "id": np.arange(100_000),
            "text": pa.array(["word"] * 100_000),
            "list": pa.array([[1, 2]] * 100_000),
        }
    )
    backend = ArrowBackend(table=large.slice(50_000, 10))
    pickled = pickle.dumps(backend)
    assert len(pickled) < 10_000
    copy = pickle.loads(pickled)
    assert copy.table.equals(backend.table)
    assert copy.table.schema.equals(backend.schema, check_metadata=True)
    assert copy.take([9, 0])["id"].to_pylist() == [50_009, 50_000]


# --- rows of other kinds


def test_rows_that_are_wider_than_any_page(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).random((12, 50_000), np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(pixels.ravel()), 50_000)
    path = write(tmp_path / "a.arrow", pa.table({"pixels": vectors}), batch_rows=5)
    for backend in (ArrowBackend(path), ArrowBackend(table=ArrowBackend(path).table)):
        taken = backend.take([11, 0, 5, 5])["pixels"].combine_chunks()
        values = taken.values.to_numpy().reshape(4, -1)
        np.testing.assert_array_equal(values, pixels[[11, 0, 5, 5]])


def test_spans_of_any_length(tmp_path: Path) -> None:
    """Some of them empty, some longer than several pages, some all as long as each other."""
    rng = np.random.default_rng(0)
    blobs = [rng.bytes(int(size)) for size in rng.integers(0, 20_000, 60)]
    blobs[7] = blobs[20] = b""
    path = write(tmp_path / "a.arrow", pa.table({"blob": blobs}), batch_rows=7)
    backend = ArrowBackend(path)
    for rows in ([7], [7, 20, 7], [3, 3, 3], list(range(60)), [20, 1, 59]):
        assert backend.take(rows)["blob"].to_pylist() == [blobs[row] for row in rows]
    nothing = pa.array([b"", b""])
    table = pa.table({"blob": pa.chunked_array([nothing, pa.array([bytes(9000)])])})
    taken = ArrowBackend(table=table).take([1, 2, 0, 2])["blob"]
    assert taken.to_pylist() == [b"", bytes(9000)] * 2


def test_what_is_taken_may_be_written_to(shards: list[Path]) -> None:
    """It is a copy, and no view of a map."""
    backend = ArrowBackend(shards)
    for found in (backend.take([3, 50]), backend.slice(3, 2), backend.slice(0, 120)):
        assert all(chunk.buffers()[1].is_mutable for chunk in found["id"].chunks)


def test_many_threads_take_from_one_backend(shards: list[Path]) -> None:
    backend = ArrowBackend(shards)
    rng = np.random.default_rng(0)
    wanted = [rng.integers(0, 120, 30) for _ in range(200)]
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda rows: backend.take(rows)["id"].to_pylist(), wanted))
    assert taken == [rows.tolist() for rows in wanted]


def test_files_elsewhere(shards: list[Path]) -> None:
    files = fsspec.filesystem("memory")
    for number, shard in enumerate(shards):
        files.pipe(f"/arrow-rows/{number}.arrow", shard.read_bytes())
    backend = ArrowBackend("memory://arrow-rows")
    rows = [119, 0, 41, 41, 7]
    assert backend.take(rows)["id"].to_pylist() == rows
    assert backend.take(rows, columns=["text"]).to_pylist() == [
        {"text": f"{row}" * (row % 7)} for row in rows
    ]
    assert backend.slice(35, 50)["id"].to_pylist() == list(range(35, 85))
    assert backend.table["id"].to_pylist() == list(range(120))
    streamed = pa.concat_tables(backend.stream(5, 110, backend.schema, 1 << 20))
    assert streamed["id"].to_pylist() == list(range(5, 115))


def test_streams_elsewhere_are_refused() -> None:
    table = numbered(0, 10)
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    fsspec.filesystem("memory").pipe("/arrow-stream/a.arrows", sink.getvalue().to_pybytes())
    with pytest.raises(OptionError, match=r"a\.arrows.*StructuredDataset"):
        ArrowBackend("memory://arrow-stream/a.arrows")


def test_files_that_are_not_opened_are_not_read(tmp_path: Path) -> None:
    """Rows with and without nulls, of the last of several files, before any other is mapped."""
    for number in range(3):
        ids = pa.array([None if number == 1 and i % 3 == 0 else i for i in range(100)])
        table = pa.table({"id": ids, "text": ["", *map(str, range(99))], "x": range(100)})
        write(tmp_path / f"{number}.arrow", table)
    for picks in ([250, 150, 151], [299, 5], [100, 100, 200], [0]):
        backend = ArrowBackend(tmp_path)
        expected = [None if i // 100 == 1 and i % 100 % 3 == 0 else i % 100 for i in picks]
        assert backend.take(picks)["id"].to_pylist() == expected
        assert [backend.get_row(pick)["id"] for pick in picks] == expected
        assert backend.take(picks)["x"].to_pylist() == [pick % 100 for pick in picks]


def test_threads_that_open_files_together(tmp_path: Path) -> None:
    for number in range(40):
        pairs = [{"i": i} for i in range(50)]
        write(tmp_path / f"{number:02}.arrow", pa.table({"id": range(50), "pair": pairs}))
    backend = ArrowBackend(tmp_path)
    orders = [np.random.default_rng(seed).permutation(2000) for seed in range(8)]

    def taken(order: np.ndarray) -> list[int]:
        parts = [backend.take(order[start : start + 20]) for start in range(0, 2000, 20)]
        return [i for part in parts for i in part["id"].to_pylist()]

    with ThreadPoolExecutor(8) as pool:
        for order, found in zip(orders, pool.map(taken, orders), strict=True):
            assert found == (order % 50).tolist()


@pytest.mark.parametrize("wrong", [2**63, 2**70, -(2**70)])
def test_indices_beyond_all_numbers_are_index_errors(wrong: int) -> None:
    backend = ArrowBackend(table=pa.table({"x": range(10)}))
    for indices in ([wrong], [-1, wrong]):
        with pytest.raises(IndexError, match=str(wrong)):
            backend.take(indices)
    with pytest.raises(IndexError):
        backend.get_row(wrong)


def test_slices_of_small_integers_do_not_overflow() -> None:
    backend = ArrowBackend(table=pa.table({"x": range(250)}))
    with pytest.raises(IndexError):
        backend.slice(np.uint8(200), np.uint8(100))  # type: ignore[arg-type]


def test_integers_that_are_objects_are_integers() -> None:
    backend = ArrowBackend(table=pa.table({"x": range(10)}))
    some = np.array([3, np.int64(-1), 3], dtype=object)
    assert backend.take(some)["x"].to_pylist() == [3, 9, 3]
    assert RowDataset(backend)[some]["x"].tolist() == [3, 9, 3]
    with pytest.raises(IndexError, match="there is no row 10"):
        backend.take(np.array([3, 10], dtype=object))
    with pytest.raises(TypeError):
        backend.take(np.array([3, None], dtype=object))


def test_columns_of_a_generator_are_read() -> None:
    backend = ArrowBackend(table=pa.table({"x": range(10), "y": range(10)}))
    assert backend.take([1], columns=(name for name in "y")).column_names == ["y"]  # type: ignore[arg-type]
    rows = RowDataset(backend).select_columns(name for name in "y")  # type: ignore[arg-type]
    assert rows.column_names == ["y"]
