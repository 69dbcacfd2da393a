"""ArrayRecord files elsewhere: copied as a whole to a bounded cache, and never taken for local."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from array_record_files import records_of, write_records
from servers.s3 import S3Server

from headrace import ArrayRecordDataset
from headrace.errors import FileChangedError, NothingFoundError, OptionError, ReadError
from headrace.sources.array_record.backend import ArrayRecordBackend

RECORDS = [records_of(400, seed, size=6000) for seed in range(3)]
FLAT = [record for part in RECORDS for record in part]


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    name = s3_server.make_bucket(f"records-{uuid4().hex[:12]}")
    folder = tmp_path_factory.mktemp("records")
    for number, records in enumerate(RECORDS):
        path = write_records(folder / f"{number}.array_record", records)
        s3_server.put(name, f"d/{number}.array_record", path.read_bytes())
    return name


def open_all(s3_server: S3Server, bucket: str, cache: Path, **options: Any) -> ArrayRecordBackend:
    return ArrayRecordBackend(
        f"s3://{bucket}/d", storage_options=s3_server.storage_options, cache_dir=cache, **options
    )


def copies(cache: Path) -> list[Path]:
    return sorted(path for path in cache.glob("??/*/0-*") if path.is_file())


def test_rows_of_a_bucket(s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    backend = open_all(s3_server, bucket, tmp_path)
    assert backend.shard_rows.tolist() == [400, 400, 400]
    assert backend.shard_names[0] == f"s3://{bucket}/d/0.array_record"
    assert len(copies(tmp_path)) == 1  # a first record says which columns there are
    assert backend.take([399, 400, 5])["record"].to_pylist() == [FLAT[399], FLAT[400], FLAT[5]]
    assert len(copies(tmp_path)) == 2
    assert backend.table["record"].to_pylist() == FLAT
    assert len(copies(tmp_path)) == 3
    again = pickle.loads(pickle.dumps(backend))
    assert again.get_row(-1)["record"] == FLAT[-1]


def test_records_are_counted_by_the_ends_of_files(
    s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    backend = open_all(s3_server, bucket, tmp_path, decode="label-payload")
    assert backend.num_rows == 1200
    assert copies(tmp_path) == []
    assert os.listdir(tmp_path) == ["new"]


def test_copies_are_shared_and_those_used_last_stay(
    s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    whole = open_all(s3_server, bucket, tmp_path / "whole")
    size = max(s or 0 for s in whole.shard_bytes)
    backend = open_all(s3_server, bucket, tmp_path, cache_bytes=5 * size // 2)
    assert backend.table["record"].to_pylist() == FLAT
    assert len(copies(tmp_path)) == 2
    kept = copies(tmp_path)
    pickle.loads(pickle.dumps(backend)).get_row(-1)
    assert copies(tmp_path) == kept
    assert backend.table["record"].to_pylist() == FLAT


def test_threads_make_one_copy(s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    backend = open_all(s3_server, bucket, tmp_path, decode="raw")
    found: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(pickle.loads(pickle.dumps(backend)).get_row(7))
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{"record": FLAT[7]}] * 6
    assert len(copies(tmp_path)) == 1


def test_a_cache_that_is_too_small(s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"has \d+ bytes and has to be copied.*more cache_bytes"):
        open_all(s3_server, bucket, tmp_path, cache_bytes="64KiB")
    with pytest.raises(OptionError, match="cache_bytes has no effect without cache_dir"):
        ArrayRecordBackend("x", cache_bytes="1GiB")


def test_the_users_cache_is_taken_where_none_is_named(
    s3_server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    backend = ArrayRecordBackend(
        f"s3://{bucket}/d/1.array_record[10:20]", storage_options=s3_server.storage_options
    )
    assert backend.table["record"].to_pylist() == RECORDS[1][10:20]
    assert len(copies(tmp_path / "headrace")) == 1


def test_a_file_that_is_missing(s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    with pytest.raises(NothingFoundError, match=r"s3://.*/d/9\.array_record"):
        ArrayRecordBackend(
            f"s3://{bucket}/d/9.array_record", storage_options=s3_server.storage_options
        )
    assert not os.path.exists(f"s3:/{bucket}")


def test_a_file_that_is_another_by_now(s3_server: S3Server, tmp_path: Path) -> None:
    name = s3_server.make_bucket(f"records-{uuid4().hex[:12]}")
    url = f"s3://{name}/a.array_record"
    first = write_records(tmp_path / "1.array_record", RECORDS[0])
    s3_server.put(name, "a.array_record", first.read_bytes())
    options: dict[str, Any] = {
        "storage_options": s3_server.storage_options,
        "cache_dir": tmp_path / "cache",
        "decode": "raw",
    }
    backend = ArrayRecordBackend(url, **options)
    second = write_records(tmp_path / "2.array_record", RECORDS[1])
    s3_server.put(name, "a.array_record", second.read_bytes())
    with pytest.raises(FileChangedError):
        backend.get_row(0)
    assert ArrayRecordBackend(url, **options).get_row(0)["record"] == RECORDS[1][0]


def test_a_damaged_file_is_named_by_its_url(s3_server: S3Server, tmp_path: Path) -> None:
    name = s3_server.make_bucket(f"records-{uuid4().hex[:12]}")
    path = write_records(tmp_path / "1.array_record", RECORDS[0])
    s3_server.put(name, "a.array_record", path.read_bytes()[:-70_000])
    with pytest.raises(
        ReadError, match=rf"s3://{name}/a.array_record is not a complete ArrayRecord"
    ):
        ArrayRecordBackend(
            f"s3://{name}/a.array_record",
            storage_options=s3_server.storage_options,
            cache_dir=tmp_path / "cache",
        )
    assert os.listdir(tmp_path / "cache") == ["new"]


def test_a_stream_of_workers(s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    loader, dataset = ArrayRecordDataset.create_dataloader(
        f"s3://{bucket}/d",
        storage_options=s3_server.storage_options,
        cache_dir=tmp_path,
        batch_size=50,
        num_workers=2,
        output_format="arrow",
    )
    rows = pa.Table.from_batches(list(loader))["record"].to_pylist()
    assert sorted(rows) == sorted(FLAT)
    assert dataset.backend.num_rows == 1200
