"""Writing ArrayRecord files: sources, forms, and that a file is either complete or absent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from array_record.python.array_record_module import ArrayRecordReader
from servers.s3 import S3Server
from warm_interpreters import run_warm

from headrace.errors import OptionError, SchemaError, WriteError
from headrace.loader import StructuredDataset
from headrace.sources.array_record.backend import ArrayRecordBackend
from headrace.write import CopyReport, write_array_record

TABLE = pa.table({"id": range(1000), "text": [f"row {i}" for i in range(1000)]})


def read(path: Path | str, **options: Any) -> pa.Table:
    return ArrayRecordBackend(path, **options).table


def options_of(path: Path) -> str:
    return str(ArrayRecordReader(str(path)).writer_options_string())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def sources(tmp_path: Path) -> dict[str, Any]:
    pq.write_table(TABLE.slice(0, 600), tmp_path / "a.parquet", row_group_size=100)
    pq.write_table(TABLE.slice(600), tmp_path / "b.parquet")
    write_array_record(TABLE, tmp_path / "before.array_record")
    return {
        "a table": TABLE,
        "a batch": TABLE.combine_chunks().to_batches()[0],
        "batches": TABLE.to_batches(max_chunksize=77),
        "tables that come": (TABLE.slice(i, 300) for i in range(0, 1000, 300)),
        "a reader": TABLE.to_reader(max_chunksize=90),
        "a glob": str(tmp_path / "*.parquet"),
        "paths": [tmp_path / "b.parquet", str(tmp_path / "a.parquet")],
        "a dataset": StructuredDataset(tmp_path / "*.parquet"),
        "a backend": ArrayRecordBackend(tmp_path / "before.array_record"),
    }


KINDS = (
    *("a table", "a batch", "batches", "tables that come", "a reader"),
    *("a glob", "paths", "a dataset", "a backend"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_sources(tmp_path: Path, kind: str) -> None:
    found = sources(tmp_path)
    assert set(found) == set(KINDS)
    target = tmp_path / "out" / "x.array_record"
    report = write_array_record(found[kind], target)
    assert (report.rows, report.target) == (1000, str(target))
    assert read(target).equals(TABLE)
    assert names(target.parent) == ["x.array_record"]


class Rows:
    """An object that is only an iterable."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(TABLE.to_pylist())


DICTS: dict[str, Callable[[], Any]] = {
    "a list": TABLE.to_pylist,
    "a generator": lambda: (row for row in TABLE.to_pylist()),
    "an iterable": Rows,
}


@pytest.mark.parametrize("kind", DICTS)
def test_dicts(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "x.array_record"
    assert write_array_record(DICTS[kind](), target).rows == 1000
    assert read(target).equals(TABLE)
    write_array_record(DICTS[kind](), target, columns=["text"], codec="raw", overwrite=True)
    assert read(target)["record"].to_pylist()[7] == b"row 7"


def test_bytes_and_labels(tmp_path: Path) -> None:
    target = tmp_path / "x.array_record"
    payloads = [b"%d" % number * (number % 5) for number in range(3000)]
    write_array_record(iter(payloads), target)
    assert read(target)["record"].to_pylist() == payloads
    write_array_record(enumerate(payloads), target, overwrite=True)
    assert read(target)["record"].to_pylist()[4] == b"\4\0\0\0\4\0\0\0" + b"4444"
    found = read(target, decode="label-payload")
    assert found["label"].to_pylist() == list(range(3000))
    assert found["payload"].to_pylist() == payloads
    write_array_record(enumerate(payloads), target, codec="columns", overwrite=True)
    assert read(target).column_names == ["label", "payload"]


def test_dicts_of_arrays(tmp_path: Path) -> None:
    rows = [{"v": np.arange(6.0).reshape(2, 3), "t": torch.ones(2), "n": np.int16(5)}] * 3
    write_array_record(rows, tmp_path / "x.array_record")
    found = read(tmp_path / "x.array_record")
    assert found.to_pylist() == [{"v": [[0, 1, 2], [3, 4, 5]], "t": [1, 1], "n": 5}] * 3
    assert found.schema.types == [
        pa.list_(pa.list_(pa.float64())),
        pa.list_(pa.float32()),
        pa.int16(),
    ]


def test_types_of_dicts_hold_the_first_thousand(tmp_path: Path) -> None:
    write_array_record([{"v": 1}, {"v": 0.5}, {"v": None}], tmp_path / "x.array_record")
    assert read(tmp_path / "x.array_record")["v"].to_pylist() == [1.0, 0.5, None]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"v": 1}] * 1500 + [{"v": 0.5}], "row 1500 does not fit .*: column 'v' should be int64"),
        ([{"v": 1}] * 1500 + [{}], r"row 1500 .*column 'v' \(int64\) is missing"),
        ([{"v": 1}] * 1500 + [{"v": 1, "w": 2}], "row 1500 .*'w' is no column"),
        ([{"v": 1}, {"v": 1, "w": 2}], "row 1 .*'w' is no column"),
        ([{"v": 1}, b"x"], "row 1 is b'x', not a dict"),
        ([{"v": 1}, {"v": "x"}], "'v' cannot be a column"),
        ([{"v": object()}], "'v' cannot be a column"),
        ([b"x", 5], "row 1 .*'record' should be binary"),
        ([b"x", None], "has nulls"),
        ([(1, b"x"), (1, b"x", 2)], r"a label and bytes, but is \(1, b'x', 2\)"),
        ([(1, b"x"), (0.5, b"x")], "row 1 .*'label' should be uint32"),
        ([(1, b"x"), (-1, b"x")], "row 1 .*'label' should be uint32"),
        ([{}], "without columns"),
    ],
)
def test_rows_that_do_not_fit(tmp_path: Path, rows: list[Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        write_array_record(rows, tmp_path / "x.array_record")
    assert names(tmp_path) == []


def test_columns(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    for source in (TABLE, tmp_path / "a.parquet"):
        target = tmp_path / "x.array_record"
        write_array_record(source, target, columns=["text"], overwrite=True)
        assert read(target).equals(TABLE.select(["text"]))
    with pytest.raises(OptionError, match="no column 'nope'"):
        write_array_record(TABLE, tmp_path / "y.array_record", columns=["nope"])


def test_groups_and_compression(tmp_path: Path) -> None:
    path = tmp_path / "x.array_record"
    write_array_record(TABLE, path)
    assert options_of(path).startswith("group_size:1,")
    assert "zstd:3" in options_of(path)
    for compression, message in [
        ("brotli:6", "brotli:6"),
        ("snappy", "snappy"),
        ("none", "uncomp"),
    ]:
        write_array_record(
            TABLE,
            path,
            group_size=50,
            compression=compression,
            writer_options={"pad_to_block_boundary": "true"},
            overwrite=True,
        )
        assert options_of(path).startswith(
            "group_size:50,transpose:false,pad_to_block_boundary:true"
        )
        assert message in options_of(path)
        assert read(path).equals(TABLE)


def test_shards(tmp_path: Path) -> None:
    target = tmp_path / "out"
    report = write_array_record(TABLE.to_batches(max_chunksize=77), target, shard_records=300)
    written = [f"part-{n:05d}.array_record" for n in range(4)]
    assert names(target) == ["_headrace_copy.json", *written]
    assert [part["name"] for part in report.parts] == written
    backend = ArrayRecordBackend(target)
    assert backend.shard_rows.tolist() == [300, 300, 300, 100]
    assert backend.table.equals(TABLE)
    assert names(tmp_path) == ["out"]


def test_no_rows(tmp_path: Path) -> None:
    write_array_record(TABLE.slice(0, 0), tmp_path / "x.array_record")
    assert ArrayRecordBackend(tmp_path / "x.array_record").num_rows == 0
    write_array_record(TABLE.slice(0, 0), tmp_path / "out", shard_records=5)
    assert ArrayRecordBackend(tmp_path / "out").num_rows == 0


def test_labels_and_payloads(tmp_path: Path) -> None:
    table = pa.table({"picture": [b"a", b"", b"ccc"], "class": pa.array([1, 2**32 - 1, 0])})
    path = tmp_path / "x.array_record"
    write_array_record(table, path, codec="label-payload")
    raw = read(path)["record"].to_pylist()
    assert raw[0] == b"\1\0\0\0\1\0\0\0a"
    found = read(path, decode="label-payload")
    assert found["label"].to_pylist() == table["class"].to_pylist()
    assert found["payload"].to_pylist() == table["picture"].to_pylist()


def test_raw_records(tmp_path: Path) -> None:
    path = tmp_path / "x.array_record"
    write_array_record(pa.table({"t": ["ä", "", "b"]}), path, codec="raw")
    assert read(path)["record"].to_pylist() == ["ä".encode(), b"", b"b"]


@pytest.mark.parametrize(
    ("codec", "table", "message"),
    [
        ("label-payload", TABLE.select(["id"]), "a column of integers and one of bytes"),
        (
            "label-payload",
            pa.table({"l": [-1], "p": [b""]}),
            "-1 in column 'l' does not fit into uint32",
        ),
        ("label-payload", pa.table({"l": [None, 1], "p": [b"", b""]}), "'l' has nulls"),
        ("label-payload", pa.table({"l": [1, 2], "p": [b"", None]}), "'p' has nulls"),
        ("raw", TABLE, "one column of bytes or text"),
        ("raw", pa.table({"p": [b"", None]}), "'p' has nulls"),
    ],
)
def test_columns_that_a_codec_cannot_pack(
    tmp_path: Path, codec: str, table: pa.Table, message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        write_array_record(table, tmp_path / "x.array_record", codec=codec)
    assert names(tmp_path) == []


def test_tables_of_other_columns(tmp_path: Path) -> None:
    tables = [TABLE, pa.table({"id": ["a"], "text": ["b"]})]
    with pytest.raises(SchemaError, match="column 'id' is string and not int64"):
        write_array_record(tables, tmp_path / "x.array_record")
    with pytest.raises(SchemaError, match="'id'"):
        write_array_record([TABLE, pa.table({"text": ["b"]})], tmp_path / "x.array_record")


def test_an_error_leaves_nothing_and_what_was_there(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.Table]:
        yield TABLE
        raise RuntimeError("the source broke")

    for shards in (None, 100):
        path = tmp_path / str(shards) / "x.array_record"
        write_array_record(TABLE.slice(0, 5), path, shard_records=shards)
        with pytest.raises(RuntimeError, match="the source broke"):
            write_array_record(broken(), path, overwrite=True, shard_records=shards)
        assert names(path.parent) == ["x.array_record"]
        assert read(path).num_rows == 5


def test_what_is_there_is_replaced_only_if_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_array_record(TABLE.slice(0, 5), path, shard_records=2)
    with pytest.raises(OptionError, match="exists; give overwrite=True"):
        write_array_record(TABLE, path)
    write_array_record(TABLE.slice(0, 7), path, shard_records=5, overwrite=True)
    assert read(path).num_rows == 7
    assert names(tmp_path) == ["x"]


def test_a_file_replaces_no_directory_and_a_directory_no_file(tmp_path: Path) -> None:
    folder, file = tmp_path / "x", tmp_path / "y.array_record"
    write_array_record(TABLE.slice(0, 5), folder, shard_records=2)
    write_array_record(TABLE.slice(0, 5), file)
    with pytest.raises(OptionError, match="x is a directory, which cannot be replaced by a file"):
        write_array_record(TABLE, folder, overwrite=True)
    with pytest.raises(OptionError, match=r"y\.array_record is a file"):
        write_array_record(TABLE, file, shard_records=2, overwrite=True)
    assert read(file).num_rows == 5


def test_one_run_at_a_time_writes_a_target(tmp_path: Path) -> None:
    path = tmp_path / "x.array_record"

    def with_another_run_inside() -> Iterator[pa.Table]:
        yield TABLE.slice(0, 500)
        with pytest.raises(WriteError, match="another process is working"):
            write_array_record(TABLE.slice(0, 7), path)
        yield TABLE.slice(500)

    assert write_array_record(with_another_run_inside(), path).rows == 1000
    assert read(path).equals(TABLE)
    assert names(tmp_path) == ["x.array_record"]


KILLED = """
import os, pyarrow, sys
from headrace.write import write_array_record
def tables():
    yield pyarrow.table({"id": range(1000)})
    os._exit(9)
write_array_record(tables(), sys.argv[1])
"""


def test_what_a_killed_run_left_is_cleared(tmp_path: Path) -> None:
    path = tmp_path / "x.array_record"
    done = run_warm("-c", KILLED, path)
    assert done.returncode == 9
    assert names(tmp_path) == [".x.array_record.headrace-parts", ".x.array_record.headrace-work"]
    write_array_record(TABLE, path)
    assert names(tmp_path) == ["x.array_record"]


def test_a_single_file_that_is_killed_at_any_moment_is_continued(tmp_path: Path) -> None:
    """Kill copies to a single file; tests of tars and shuffles kill copies to folders."""
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=100)
    (tmp_path / "work").mkdir()
    script = Path(__file__).with_name("killed_copies.py")
    done = run_warm(script, tmp_path / "a.parquet", tmp_path / "work", 1, "record")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == [], done.stderr
    assert found["killed"] >= 10
    assert found["resumed"] >= 3


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.array_record"

    def tables() -> Iterator[pa.Table]:
        yield TABLE
        path.write_text("of another")

    with pytest.raises(WriteError, match="another process has written files"):
        write_array_record(tables(), path)
    assert path.read_text() == "of another"
    assert names(tmp_path) == ["x.array_record"]


def test_a_copy_to_s3_that_is_stopped_is_continued(tmp_path: Path, s3_server: S3Server) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=100)
    bucket = s3_server.make_bucket(f"records-{uuid4().hex[:12]}")
    sent: list[str] = []

    def stop(stage: str, share: float) -> None:
        sent[:] = s3_server.keys(bucket)
        if len(sent) == 2:
            raise KeyboardInterrupt

    def write(progress: Callable[[str, float], None] | None = None) -> CopyReport:
        return write_array_record(
            tmp_path / "a.parquet",
            f"s3://{bucket}/out",
            shard_records=300,
            target_options=s3_server.storage_options,
            work_dir=tmp_path / "work",
            progress=progress,
        )

    with pytest.raises(KeyboardInterrupt):
        write(stop)
    assert len(sent) == 2
    report = write()
    assert (report.resumed, report.rows, len(report.parts)) == (True, 1000, 4)
    options = s3_server.storage_options
    assert read(f"s3://{bucket}/out", storage_options=options).equals(TABLE)
    with pytest.raises(OptionError, match="is not empty"):
        write()
    assert names(tmp_path) == ["a.parquet"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WriteError, match="cannot be written"):
        write_array_record(TABLE, tmp_path / "file" / "x.array_record")
    with pytest.raises(OptionError, match=r"s3://b/x is remote"):
        write_array_record(TABLE, "s3://b/x")


def test_a_target_inside_of_the_source(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    with pytest.raises(OptionError, match="inside the"):
        write_array_record(tmp_path, tmp_path / "x.array_record", format="parquet")
    with pytest.raises(OptionError, match="inside the"):
        write_array_record(tmp_path / "a.parquet", tmp_path / "a.parquet", overwrite=True)
    assert pq.read_table(tmp_path / "a.parquet").equals(TABLE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 0}, "group_size must be an int of at least 1"),
        ({"group_size": None}, "group_size must be an int"),
        ({"shard_records": True}, "shard_records must be an int"),
        ({"codec": "json"}, 'codec must be "columns", "label-payload" or "raw"'),
        ({"compression": "zip:3"}, "Unknown option zip"),
        ({"compression": 3}, "compression must be a str"),
        ({"writer_options": {"nope": 1}}, "Unknown option nope"),
        ({"writer_options": "nope:1"}, "Unknown option nope"),
        ({"writer_options": ["nope"]}, "writer_options must be a mapping or a str"),
        ({"storage_options": {}}, "applies to paths only"),
    ],
)
def test_options_that_are_none(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        write_array_record(TABLE, tmp_path / "x.array_record", **options)
    assert names(tmp_path) == []


@pytest.mark.parametrize("source", [5, [], [5], {"a": 1}, iter(["a"])], ids=lambda s: repr(s)[:10])
def test_sources_that_are_none(tmp_path: Path, source: Any) -> None:
    with pytest.raises(OptionError):
        write_array_record(source, tmp_path / "x.array_record")


def test_progress(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    calls: list[tuple[str, float]] = []
    target = tmp_path / "x.array_record"
    write_array_record(
        tmp_path / "a.parquet", target, progress=lambda stage, share: calls.append((stage, share))
    )
    assert calls[0] == ("writing", 0.0)
    assert calls[-1] == ("writing", 1.0)
    assert [share for _, share in calls] == sorted(share for _, share in calls)
