"""Rows of ArrayRecord files by index: which, how they are found, and what they hold."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from array_record_files import records_of, write_records

from headrace import ArrayRecordDataset
from headrace.access import StorageBackend
from headrace.errors import OptionError, ReadError, SchemaError
from headrace.sources.array_record.backend import ArrayRecordBackend
from headrace.write import write_array_record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    for number, (count, group) in enumerate([(120, 1), (0, 1), (75, 10), (1, 1)]):
        write_records(folder / f"{number}.array_record", records_of(count, number), group)
    (folder / "notes.txt").write_text("not a record")
    return folder


ALL = [r for n, c in enumerate([120, 0, 75, 1]) for r in records_of(c, n)]


def test_what_it_is(folder: Path) -> None:
    backend = ArrayRecordBackend(folder)
    assert isinstance(backend, StorageBackend)
    assert backend.schema == pa.schema([("record", pa.binary())])
    assert (backend.num_rows, backend.num_shards, len(backend)) == (196, 4, 196)
    assert backend.shard_rows.tolist() == [120, 0, 75, 1]
    assert [os.path.basename(n) for n in backend.shard_names] == [
        f"{i}.array_record" for i in range(4)
    ]
    assert backend.table["record"].to_pylist() == ALL
    assert all(backend.shard_etags)


@pytest.mark.parametrize("indices", [[5], [195, 0, 119, 120, 0, 0, 194, 121], list(range(196))])
def test_take(folder: Path, indices: list[int]) -> None:
    backend = ArrayRecordBackend(folder)
    expected = [ALL[i] for i in indices]
    assert backend.take(indices)["record"].to_pylist() == expected
    assert backend.take(np.array(indices, np.uint16))["record"].to_pylist() == expected
    backwards = [i - 196 for i in indices]
    assert backend.take(backwards)["record"].to_pylist() == expected
    assert [backend.get_row(i) for i in indices] == [{"record": one} for one in expected]
    assert [backend.get_row(np.int64(i))["record"] for i in backwards] == expected


def test_nothing_is_taken_of_an_empty_list(folder: Path) -> None:
    empty = ArrayRecordBackend(folder).take([])
    assert empty.schema == pa.schema([("record", pa.binary())])
    assert empty.num_rows == 0


@pytest.mark.parametrize("index", [196, -197, 10**12])
def test_out_of_range(folder: Path, index: int) -> None:
    backend = ArrayRecordBackend(folder)
    with pytest.raises(IndexError, match="there is no row"):
        backend.take([0, index])
    with pytest.raises(IndexError, match="there is no row"):
        backend.get_row(index)


def test_an_index_that_is_no_integer(folder: Path) -> None:
    with pytest.raises(TypeError):
        ArrayRecordBackend(folder).get_row(1.5)  # type: ignore[arg-type]


def test_slices_and_batches(folder: Path) -> None:
    backend = ArrayRecordBackend(folder)
    for start, length in [(0, 196), (110, 20), (119, 2), (195, 1), (3, 0), (130, 15)]:
        assert backend.slice(start, length)["record"].to_pylist() == ALL[start : start + length]
    batches = [row for b in backend.iter_batches() for row in b["record"].to_pylist()]
    assert batches == ALL
    some = [row for b in backend.iter_batches([2, 3]) for row in b["record"].to_pylist()]
    assert some == ALL[120:]
    mixed = [r for b in backend.iter_batches(shuffle=True, seed=4) for r in b["record"].to_pylist()]
    assert sorted(mixed) == sorted(ALL) != mixed


def test_streams_cross_shards(folder: Path) -> None:
    for high_memory in (False, True):
        backend = ArrayRecordBackend(folder, high_memory=high_memory)
        for start, length in [(0, 196), (100, 60), (121, 3)]:
            tables = list(backend.stream(start, length, backend.schema, 1000))
            rows = [row for table in tables for row in table["record"].to_pylist()]
            assert rows == ALL[start : start + length]
        assert [t.num_rows for t in backend.stream(100, 60, pa.schema([]), 1000)] == [60]


def test_tables_of_a_stream_have_about_the_bytes_that_are_asked_for(tmp_path: Path) -> None:
    write_records(tmp_path / "a.array_record", [bytes(1000)] * 300)
    backend = ArrayRecordBackend(tmp_path)
    sizes = [t.nbytes for t in backend.stream(0, 300, backend.schema, 50_000)]
    assert max(sizes[1:]) <= 51_000 < sum(sizes)


def test_batches_end_where_groups_do(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.array_record", records_of(3000), group_size=300)
    assert [b.num_rows for b in ArrayRecordBackend(path).iter_batches()] == [900, 900, 900, 300]
    part = ArrayRecordBackend(f"{path}[100:2000]")
    assert [b.num_rows for b in part.iter_batches()] == [800, 900, 200]
    assert part.unit_rows(0) == 300 * max(1, (1 << 18) // (path.stat().st_size // 3000 * 300))


def test_no_columns(folder: Path, tmp_path: Path) -> None:
    nested = tmp_path / "nested.array_record"
    write_array_record(pa.table({"s": [{"a": 1}]}), nested)
    assert ArrayRecordBackend(nested).get_row(0, columns=[]) == {}
    backend = ArrayRecordBackend(folder)
    assert backend.get_row(1, columns=[]) == {}
    assert backend.take([1, 2], columns=[]).num_rows == 2
    assert backend.slice(1, 5, columns=[]).num_rows == 5
    with pytest.raises(SchemaError, match="no column 'x'"):
        backend.get_row(1, columns=["x"])


def test_instructions(folder: Path) -> None:
    path = str(folder / "0.array_record")
    last = str(folder / "3.array_record")
    backend = ArrayRecordBackend([f"{path}[100:110]", last, f"{path}[3:5]", f"{path}[0:0]"])
    rows = records_of(120, 0)
    expected = rows[100:110] + records_of(1, 3) + rows[3:5]
    assert backend.table["record"].to_pylist() == expected
    assert [backend.get_row(i)["record"] for i in range(len(backend))] == expected
    assert backend.take([11, 0])["record"].to_pylist() == [rows[3], rows[100]]
    assert backend.shard_names[:2] == [f"{path}[100:110]", last]
    assert backend.shard_bytes[0] == os.path.getsize(path) // 12
    with pytest.raises(OptionError, match=r"has 120 records, so \[100:121\] is out of range"):
        ArrayRecordBackend(f"{path}[100:121]")
    with pytest.raises(OptionError, match="more than one file"):
        ArrayRecordBackend(f"{folder}/*.array_record[0:1]")


@dataclass
class Instruction:
    """What TFDS and Grain describe parts of files by."""

    filename: Any
    skip: int
    take: int
    examples_in_shard: int


def test_instructions_of_tfds(folder: Path) -> None:
    path, last = folder / "0.array_record", folder / "3.array_record"
    parts = [Instruction(str(path), 100, 10, 120), Instruction(last, 0, -1, 1)]
    backend = ArrayRecordBackend([*parts, f"{path}[3:5]"])
    rows = records_of(120, 0)
    assert backend.table["record"].to_pylist() == rows[100:110] + records_of(1, 3) + rows[3:5]
    assert backend.shard_names[:2] == [f"{path}[100:110]", str(last)]
    loader, _ = ArrayRecordDataset.create_dataloader(parts[0], batch_size=4)
    assert [row for batch in loader for row in batch["record"]] == rows[100:110]
    with pytest.raises(OptionError, match="has 120 records, but its instruction says 121"):
        ArrayRecordBackend(Instruction(path, 0, 5, 121))
    for skip, take in [(119, 2), (-1, 1), (121, -1), (5, -2)]:
        with pytest.raises(OptionError, match=r"has 120 records, so \[.*\] is out of range"):
            ArrayRecordBackend(Instruction(path, skip, take, 120))
    with pytest.raises(OptionError, match="path must be a str"):
        ArrayRecordBackend(Instruction(7, 0, 1, 1))


def test_files_stand_as_they_are_named(folder: Path) -> None:
    first, second = folder / "0.array_record", folder / "2.array_record"
    backend = ArrayRecordBackend([second, str(first), second])
    assert backend.table["record"].to_pylist() == ALL[120:195] + ALL[:120]
    assert ArrayRecordBackend(f"{folder}/[02].array_record").num_rows == 195
    assert ArrayRecordBackend(f"{folder}/?.array_record").shard_rows.tolist() == [120, 0, 75, 1]


def test_names_of_sharded_files_are_found_in_directories(tmp_path: Path) -> None:
    for number in range(2):
        write_records(tmp_path / f"x.array_record-0000{number}-of-00002", records_of(5, number))
    (tmp_path / "dataset_info.json").write_text("{}")
    assert ArrayRecordBackend(tmp_path).num_rows == 10


def test_pickles_are_small_and_go_on_reading(folder: Path) -> None:
    backend = ArrayRecordBackend(folder, reader_options={"footer_prefetch_bytes": "64k"})
    backend.take([1, 2])
    data = pickle.dumps(backend)
    assert len(data) < 4000
    copy = pickle.loads(data)
    assert copy.take([150])["record"].to_pylist() == [ALL[150]]
    assert copy.shard_names == backend.shard_names


def test_reader_options(folder: Path) -> None:
    text = ArrayRecordBackend(folder, reader_options="max_parallelism:1, readahead_buffer_size:1M")
    parallel = ArrayRecordBackend(folder, reader_options={"max_parallelism": 4})
    for backend in (text, parallel):
        assert backend.take([9, 150])["record"].to_pylist() == [ALL[9], ALL[150]]
        tables = list(backend.stream(0, 196, backend.schema, 10**6))
        assert pa.concat_tables(tables)["record"].to_pylist() == ALL
    with pytest.raises(OptionError, match="Unknown option nonsense"):
        ArrayRecordBackend(folder, reader_options={"nonsense": 1})
    with pytest.raises(OptionError, match="reader_options must be a mapping"):
        ArrayRecordBackend(folder, reader_options=3)  # type: ignore[arg-type]


def test_a_warning_of_large_groups_once_a_file(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = shutil.copy(folder / "2.array_record", tmp_path)
    backend = ArrayRecordBackend(path)
    with caplog.at_level(logging.WARNING):
        list(backend.stream(0, 75, backend.schema, 1000))
        backend.slice(3, 10)
        list(backend.iter_batches())
        assert not caplog.records
        for row in (4, 40):
            backend.take([row, row + 20])
            backend.get_row(row)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert str(path) in said[0]
    assert "in groups of 10 records: each row that is read at random decodes up to 10" in said[0]
    ArrayRecordBackend(path).get_row(3)
    assert len(caplog.records) == 1
    caplog.clear()
    ArrayRecordBackend(folder / "0.array_record").take([5, 3])
    assert not caplog.records


def test_an_empty_file(folder: Path) -> None:
    backend = ArrayRecordBackend(folder / "1.array_record")
    assert backend.num_rows == 0
    assert backend.table.num_rows == 0
    with pytest.raises(IndexError):
        backend.get_row(0)
    with pytest.raises(IndexError):
        backend.get_row(-1)


def test_packed_columns_are_known_by_the_file(tmp_path: Path) -> None:
    table = pa.table({"label": range(50), "image": [b"%d" % i * i for i in range(50)]})
    path = tmp_path / "a.array_record"
    write_array_record(table, path)
    backend = ArrayRecordBackend(path)
    assert backend.schema == table.schema
    assert backend.table.equals(table)
    assert backend.get_row(-1) == table.to_pylist()[-1]
    assert backend.take([7, 3, 7], columns=["image"]).to_pylist() == [
        {"image": b"%d" % i * i} for i in (7, 3, 7)
    ]
    raw = ArrayRecordBackend(path, decode="raw")
    assert raw.schema.names == ["record"]
    assert pa.ipc.open_stream(raw.get_row(7)["record"]).read_all().equals(table.slice(7, 1))
    assert ArrayRecordBackend(path, decode="columns").schema == table.schema


def test_files_of_different_columns(tmp_path: Path) -> None:
    write_array_record(pa.table({"a": [1, 2]}), tmp_path / "0.array_record")
    write_array_record(pa.table({"b": [1, 2]}), tmp_path / "1.array_record")
    backend = ArrayRecordBackend(tmp_path)
    with pytest.raises(ReadError, match=r"1\.array_record: record 0 has the columns \['b'\]"):
        backend.take([0, 2])


def test_labels_and_payloads(tmp_path: Path) -> None:
    rows = [(i * 1000, b"p" * i) for i in range(40)]
    records = [n.to_bytes(4, "little") + len(p).to_bytes(4, "little") + p for n, p in rows]
    path = write_records(tmp_path / "a.array_record", records)
    backend = ArrayRecordBackend(path, decode="label-payload")
    assert backend.schema == pa.schema([("label", pa.uint32()), ("payload", pa.binary())])
    expected = [{"label": n, "payload": p} for n, p in rows]
    assert backend.table.to_pylist() == expected
    assert backend.get_row(9) == expected[9]
    assert backend.take([9], columns=["payload"]).to_pylist() == [{"payload": b"p" * 9}]
    assert backend.get_row(9, columns=["label"]) == {"label": 9000}


@pytest.mark.parametrize("bad", [b"", b"1234567", b"12345678", b"\1\0\0\0\2\0\0\0a"])
def test_a_record_that_is_no_label_and_payload(tmp_path: Path, bad: bytes) -> None:
    good = b"\1\0\0\0\1\0\0\0a"
    path = write_records(tmp_path / "a.array_record", [good, good, bad])
    backend = ArrayRecordBackend(path, decode="label-payload")
    for read in (lambda: backend.take([0, 2]), lambda: backend.get_row(2)):
        with pytest.raises(
            ReadError, match=r"a\.array_record: record 2 is not a label and payload"
        ):
            read()


def number_and_rest(record: bytes) -> dict[str, object]:
    number, _, rest = record.partition(b":")
    return {"n": int(number), "rest": rest}


def test_a_users_function(folder: Path) -> None:
    backend = ArrayRecordBackend(folder, decode=number_and_rest)
    assert backend.schema == pa.schema([("n", pa.int64()), ("rest", pa.binary())])
    expected = [number_and_rest(record) for record in ALL]
    assert backend.table.to_pylist() == expected
    assert backend.get_row(130, columns=["n"]) == {"n": expected[130]["n"]}
    schema = pa.schema([("n", pa.int16()), ("rest", pa.large_binary())])
    told = ArrayRecordBackend(folder, decode=(number_and_rest, schema))
    assert told.schema == schema
    assert told.take([3, 2], columns=["n"]) == pa.table({"n": pa.array([3, 2], pa.int16())})


class _Decoder:
    schema = pa.schema([("length", pa.int32())])

    def __call__(self, record: bytes) -> dict[str, int]:
        return {"length": len(record)}


def test_a_function_that_says_its_schema(folder: Path) -> None:
    backend = ArrayRecordBackend(folder / "1.array_record", decode=_Decoder())
    assert backend.schema == _Decoder.schema
    with pytest.raises(SchemaError, match="no record from which columns"):
        ArrayRecordBackend(folder / "1.array_record", decode=number_and_rest)


def test_a_record_that_a_users_function_cannot_decode(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.array_record", [b"1:a", b"2:b", b"x:c"])
    backend = ArrayRecordBackend(path, decode=number_and_rest)
    with pytest.raises(ReadError, match=r"a\.array_record: record 2 cannot be decoded: ValueError"):
        backend.take([0, 2])
    with pytest.raises(ReadError, match="record 2 cannot be decoded"):
        backend.get_row(-1)


def test_records_that_do_not_fit_the_columns(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.array_record", [b"1", b"2", b"x"])

    def decode(record: bytes) -> dict[str, object]:
        return {"v": int(record) if record.isdigit() else record}

    backend = ArrayRecordBackend(path, decode=decode)
    with pytest.raises(ReadError, match="record 2 does not fit the columns"):
        backend.take([0, 1, 2])
    with pytest.raises(ReadError, match="decode returned a list; it must return a dict or"):
        ArrayRecordBackend(path, decode=lambda record: [record])  # type: ignore[arg-type,return-value]
    with pytest.raises(SchemaError, match="no value in 'v'"):
        ArrayRecordBackend(path, decode=lambda record: {"v": None})


@pytest.mark.parametrize("decode", ["columnar", 5, (1, 2), (len, "schema")])
def test_a_decode_that_is_none(folder: Path, decode: object) -> None:
    with pytest.raises(OptionError, match="decode must be"):
        ArrayRecordBackend(folder, decode=decode)  # type: ignore[arg-type]


def test_packed_columns_where_there_are_none(folder: Path) -> None:
    with pytest.raises(SchemaError, match=r"0\.array_record: record 0 is not a row of columns"):
        ArrayRecordBackend(folder, decode="columns")
