"""Folders of table formats are refused as plain files: their files hold rows that were deleted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers.fast_s3 import FastS3Process
from servers.proxy import FaultProxy

import headrace
from headrace import OptionError, StructuredDataset
from headrace.access import ParquetBackend

ROWS = 5
Table = Callable[[Path], Path]


def put(path: Path, data: bytes = b"{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def put_rows(path: Path, first: int = 0) -> Path:
    put(path)
    pq.write_table(pa.table({"id": range(first, first + ROWS)}), path)
    return path


def delta(folder: Path) -> Path:
    """A Delta table with two partitions; rows of one of its files are deleted."""
    removed = put_rows(folder / "part=1" / "part-00000.snappy.parquet")
    put_rows(folder / "part=1" / "part-00001.snappy.parquet")
    put_rows(folder / "part=2" / "part-00002.snappy.parquet")
    put(folder / "_delta_log" / f"{0:020}.json")
    entry = {"remove": {"path": f"part=1/{removed.name}", "dataChange": True}}
    put(folder / "_delta_log" / f"{1:020}.json", json.dumps(entry).encode())
    return folder / "part=1"


def old_delta(folder: Path) -> Path:
    """A Delta table whose first entries of the log are gone."""
    put_rows(folder / "a" / "part-00000.snappy.parquet")
    put(folder / "_delta_log" / f"{20:020}.checkpoint.parquet")
    put(folder / "_delta_log" / "_last_checkpoint")
    return folder / "a"


def hudi(folder: Path) -> Path:
    put_rows(folder / "2024" / "07" / "a_0-1_001.parquet")
    put(folder / ".hoodie" / "hoodie.properties")
    put(folder / ".hoodie" / "001.commit")
    return folder / "2024" / "07"


def iceberg(folder: Path) -> Path:
    put_rows(folder / "data" / "day=1" / "00000-0-a.parquet")
    put(folder / "metadata" / "00000-5fdd61ab.metadata.json")
    put(folder / "metadata" / "snap-17-0-a.avro")
    return folder / "data"


def migrated_iceberg(folder: Path) -> Path:
    put_rows(folder / "day=1" / "a.parquet")
    put(folder / "metadata" / "v1.metadata.json")
    return folder / "day=1"


def paimon(folder: Path) -> Path:
    put_rows(folder / "day=1" / "bucket-0" / "data-a-0.parquet")
    put(folder / "snapshot" / "snapshot-1")
    put(folder / "snapshot" / "LATEST")
    put(folder / "schema" / "schema-0")
    put(folder / "manifest" / "manifest-a-0")
    return folder / "day=1" / "bucket-0"


TABLES: dict[Table, tuple[str, str]] = {
    delta: ("Delta Lake", "does not support yet"),
    old_delta: ("Delta Lake", "does not support yet"),
    hudi: ("Hudi", "does not support yet"),
    iceberg: ("Iceberg", "headrace.IcebergDataset"),
    migrated_iceberg: ("Iceberg", "headrace.IcebergDataset"),
    paimon: ("Paimon", "headrace.PaimonDataset"),
}


def places(folder: Path, part: Path) -> list[str]:
    """The ways to name a table or some of it, beside a list of its files."""
    files = sorted(str(path) for path in folder.rglob("*.parquet") if "_delta_log" not in str(path))
    return [
        str(folder),
        str(folder.parent),  # a warehouse
        str(part),
        f"{part}/*",
        f"{folder}/**/*.parquet",
        f"{folder.parent}/*/{part.relative_to(folder)}",
        files[0],
    ]


@pytest.fixture(params=TABLES, ids=lambda made: made.__name__)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, str]:
    """A table, a part of it, and what its refusal says."""
    folder = tmp_path / "warehouse" / "table"
    name, cure = TABLES[request.param]
    return folder, request.param(folder), f"table is a table of {name}.*{cure}.*as_files=True"


def test_a_table_and_its_parts_are_refused(table: tuple[Path, Path, str]) -> None:
    folder, part, said = table
    for place in places(folder, part):
        with pytest.raises(OptionError, match=said):
            StructuredDataset(place)
        with pytest.raises(OptionError, match=said):
            StructuredDataset([place], on_error="skip")
    for opened in (headrace.open, ParquetBackend):
        with pytest.raises(OptionError, match=said):
            opened(folder)
    with pytest.raises(OptionError, match=said):
        headrace.shuffle_into(folder, folder.parent.parent / "copy")


def test_as_files_insists(table: tuple[Path, Path, str]) -> None:
    folder, part, _ = table
    for place in places(folder, part):
        dataset = StructuredDataset(place, format="parquet", as_files=True)
        assert dataset.num_rows == ROWS * len(dataset.files)
    rows = ROWS * len([p for p in folder.rglob("*.parquet") if "_delta_log" not in str(p)])
    loader, _ = StructuredDataset.create_dataloader(folder, "parquet", as_files=True, num_workers=0)
    assert sum(len(batch["id"]) for batch in loader) == rows
    assert headrace.open(folder, format="parquet", as_files=True).num_rows == rows
    assert ParquetBackend(folder, as_files=True).num_rows == rows
    copy = folder.parent.parent / "copy"
    assert headrace.shuffle_into(folder, copy, format="parquet", as_files=True).rows == rows
    with pytest.raises(OptionError, match="as_files must be True or False"):
        StructuredDataset(folder, as_files="yes")


def test_files_beside_a_table_are_read(table: tuple[Path, Path, str]) -> None:
    folder, _, _ = table
    beside = folder.parent / "plain"
    put_rows(beside / "a.parquet")
    put(beside / "metadata" / "labels.json")
    put(beside / "_SUCCESS", b"")
    assert StructuredDataset(beside, "parquet").num_rows == ROWS
    assert StructuredDataset(f"{beside}/*.parquet").num_rows == ROWS
    put(folder.parent / "words.csv", b"word\na\n")
    assert StructuredDataset(folder.parent, "csv").schema.names == ["word"]


def test_the_metadata_of_a_table_may_be_read(tmp_path: Path) -> None:
    delta(tmp_path / "delta")
    iceberg(tmp_path / "iceberg")
    assert len(StructuredDataset(tmp_path / "delta" / "_delta_log" / "*.json", "jsonl").files) == 2
    assert len(StructuredDataset(tmp_path / "iceberg" / "metadata", "json").files) == 1


def test_lance_is_opened_or_named(tmp_path: Path) -> None:
    place = tmp_path / "rows"
    put(place / "data" / "a.lance")
    put(place / "_versions" / "1.manifest")
    with pytest.raises(OptionError, match=r"rows is a table of Lance.*headrace\.LanceDataset"):
        StructuredDataset(place)
    with pytest.raises(OptionError, match="table of Lance"):
        StructuredDataset(place, None)


def test_a_manifest_is_not_checked_again(tmp_path: Path) -> None:
    delta(tmp_path / "table")
    dataset = StructuredDataset(tmp_path / "table", as_files=True)
    dataset.save_manifest(tmp_path / "saved")
    again = StructuredDataset(tmp_path / "table", manifest=tmp_path / "saved")
    assert again.num_rows == dataset.num_rows


@pytest.mark.skipif(sys.platform != "linux", reason="permissions of folders")
def test_folders_above_that_may_not_be_read(tmp_path: Path) -> None:
    inside = tmp_path / "closed" / "data"
    put_rows(inside / "a.parquet")
    (tmp_path / "closed" / "metadata").mkdir(mode=0o000)
    assert StructuredDataset(inside).num_rows == ROWS


# --- in object stores


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """A bucket with a table of each kind and a plain folder, options for it, and its proxy."""
    folder = tmp_path_factory.mktemp("tables") / "table-bucket"
    for made in TABLES:
        made(folder / made.__name__)
    for part in range(3):
        put_rows(folder / "plain" / "deep" / "train" / f"{part}.parquet")
    with FastS3Process(folder) as server, FaultProxy(server.url) as proxy:
        options = {"key": "any", "secret": "any", "endpoint_url": proxy.url}
        yield "s3://table-bucket", options, proxy


@pytest.mark.parametrize("made", TABLES, ids=lambda made: made.__name__)
def test_tables_in_object_stores(bucket: Any, made: Table, tmp_path: Path) -> None:
    url, options, _ = bucket
    part = made(tmp_path).relative_to(tmp_path)
    table = f"{url}/{made.__name__}"
    said = f"{made.__name__} is a table of {TABLES[made][0]}"
    for place in (table, f"{table}/", f"{table}/{part}", f"{table}/{part}/**/*.parquet"):
        with pytest.raises(OptionError, match=said):
            StructuredDataset(place, storage_options=options)
    insisted = StructuredDataset(f"{table}/{part}", storage_options=options, as_files=True)
    assert insisted.num_rows == ROWS * len(insisted.files)


def test_looking_takes_few_requests(bucket: Any) -> None:
    url, options, proxy = bucket
    for place in ("plain/deep/train", "plain/deep/train/*.parquet", "plain/deep/train/0.parquet"):
        asked = []
        for insisting in (True, False):
            proxy.log.clear()
            StructuredDataset(f"{url}/{place}", storage_options=options, as_files=insisting)
            asked.append(len(proxy.log))
        assert asked[1] - asked[0] <= 6
