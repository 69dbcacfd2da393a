"""Targets of shuffled copies: refusals, stores, and targets defined by users."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers.azure import AzureServer
from servers.s3 import S3Server
from shuffled_rows import beside, ids_of, write_numbered

from headrace import (
    DataFileInfo,
    OptionError,
    ReadError,
    StructuredDataset,
    WriteError,
    shuffle_into,
)
from headrace.cli import main
from headrace.storage import RemoteStore
from headrace.write import Receipt, TargetOptions, copy_rows, register_target
from headrace.write._rows import target_kind
from headrace.write._shuffle import shuffle_keys

ROWS = 3_000
MARKER = "_headrace_copy.json"


def in_order(rows: int = ROWS, seed: int = 0) -> list[int]:
    return np.argsort(shuffle_keys(seed, 0, rows), kind="stable").tolist()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_numbered(tmp_path / "source")
    return tmp_path / "source"


# --- existing targets


def test_a_target_that_is_not_empty(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("keep me")
    with pytest.raises(OptionError, match="out is not empty"):
        shuffle_into(source, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["notes.txt"]
    assert beside(tmp_path / "out") == []
    shuffle_into(source, tmp_path / "out", overwrite=True)
    assert sorted(os.listdir(tmp_path / "out")) == [MARKER, "part-00000.parquet"]
    assert ids_of(tmp_path / "out") == in_order()
    assert beside(tmp_path / "out") == []


def test_a_target_that_is_empty(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    shuffle_into(source, tmp_path / "out")
    assert ids_of(tmp_path / "out") == in_order()


def test_a_target_that_is_filled_meanwhile(source: Path, tmp_path: Path) -> None:
    def progress(stage: str, share: float) -> None:
        if stage == "writing":
            (tmp_path / "out").mkdir(exist_ok=True)
            (tmp_path / "out" / "notes.txt").write_text("keep me")

    with pytest.raises(WriteError, match="another process has written files"):
        shuffle_into(source, tmp_path / "out", progress=progress)
    assert os.listdir(tmp_path / "out") == ["notes.txt"]
    (tmp_path / "out" / "notes.txt").unlink()
    assert shuffle_into(source, tmp_path / "out").resumed
    assert ids_of(tmp_path / "out") == in_order()


def test_a_target_that_is_a_file(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OptionError, match="is a file"):
        shuffle_into(source, tmp_path / "out", overwrite=True)


@pytest.mark.parametrize("target", ["source", "source/deep/out", ".", "linked", "linked/out"])
def test_a_target_in_the_source_or_around_it(
    source: Path, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "linked").symlink_to("source")
    before = sorted(os.listdir(source))
    with pytest.raises(OptionError, match="is inside the"):
        shuffle_into("source", target, overwrite=True)
    assert sorted(os.listdir(source)) == before


def test_beside_files_that_are_named(source: Path, tmp_path: Path) -> None:
    shuffle_into([source / "000.parquet", source / "001.parquet"], source / "out")
    assert ids_of(source / "out") == in_order(2_000)


def test_a_link_stays_a_link(source: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to("real")
    shuffle_into(source, tmp_path / "out")
    assert (tmp_path / "out").is_symlink()
    assert ids_of(tmp_path / "real") == in_order()


def test_a_parent_that_is_a_file(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"file.*Not a directory"):
        shuffle_into(source, tmp_path / "file" / "out")


def test_a_work_directory_of_ones_own(source: Path, tmp_path: Path) -> None:
    def progress(stage: str, share: float) -> None:
        assert (tmp_path / "work" / "headrace.jsonl").exists()

    (tmp_path / "work" / "runs" / "training").mkdir(parents=True)
    for name in ("parts", "lock", "journal.jsonl"):
        (tmp_path / "work" / name).write_text("of the user")
    shuffle_into(source, tmp_path / "out", work_dir=tmp_path / "work", progress=progress)
    assert sorted(os.listdir(tmp_path / "work")) == ["journal.jsonl", "lock", "parts", "runs"]
    assert os.listdir(tmp_path / "work" / "runs") == ["training"]
    assert beside(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1.5}, "seed must be an int"),
        ({"seed": True}, "seed must be an int"),
        ({"memory_bytes": "1kB"}, "memory must be at least 1MiB"),
        ({"memory_bytes": "much"}, "memory_bytes must be"),
        ({"file_rows": 0}, "file_rows must be an int of at least 1"),
        ({"row_group_rows": -5}, "row_group_rows must be an int of at least 1"),
        ({"file_rows": 5, "file_bytes": 5}, "give only one"),
        ({"target_format": "orc"}, "target_format must be one of parquet, arrow, lance"),
        ({"compression": "rar"}, "compression must be one of none, snappy"),
        ({"target_format": "arrow", "compression": "snappy"}, "compression must be one of none"),
    ],
)
def test_options_that_make_no_sense(
    source: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        shuffle_into(source, tmp_path / "out", **options)
    assert os.listdir(tmp_path) == ["source"]


@pytest.mark.parametrize(
    ("target_format", "compression"), [("parquet", "zstd"), ("arrow", "lz4"), ("parquet", "none")]
)
def test_compression(source: Path, tmp_path: Path, target_format: str, compression: str) -> None:
    shuffle_into(source, tmp_path / "out", target_format=target_format, compression=compression)
    assert ids_of(tmp_path / "out") == in_order()
    if target_format == "parquet":
        file_metadata = pq.ParquetFile(tmp_path / "out" / "part-00000.parquet").metadata
        codec = file_metadata.row_group(0).column(0).compression
        assert codec == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())


def test_the_ending_of_the_target_names_its_format(source: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="would be opened as a Lance table"):
        shuffle_into(source, tmp_path / "out.lance", target_format="arrow")
    shuffle_into(source, tmp_path / "out.arrow")
    assert os.listdir(tmp_path / "out.arrow")[0].endswith((".arrow", ".json"))


# --- stores


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.make_bucket(f"shuffle-{uuid4().hex[:12]}")


def test_from_s3_into_s3(
    s3_server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for file in range(3):
        body = io.BytesIO()
        pq.write_table(pa.table({"id": range(file * 1_000, (file + 1) * 1_000)}), body)
        s3_server.put(bucket, f"in/{file}.parquet", body.getvalue())
    options = {"storage_options": s3_server.storage_options}
    both = {**options, "target_options": s3_server.storage_options}
    report = shuffle_into(f"s3://{bucket}/in", f"s3://{bucket}/out", file_rows=1_000, **both)
    assert report.rows == ROWS
    names = [f"out/part-{i:05d}.parquet" for i in range(3)]
    assert [key for key in s3_server.keys(bucket) if key.startswith("out")] == [
        f"out/{MARKER}",
        *names,
    ]
    loader, _ = StructuredDataset.create_dataloader(f"s3://{bucket}/out", **options)
    assert [i for batch in loader for i in batch["id"].tolist()] == in_order()
    assert list((tmp_path / "cache").rglob("*.parquet")) == []
    with pytest.raises(OptionError, match="out is not empty"):
        shuffle_into(f"s3://{bucket}/in", f"s3://{bucket}/out", **both)
    with pytest.raises(OptionError, match="is inside the source"):
        shuffle_into(f"s3://{bucket}/in", f"s3://{bucket}/in/out", **both)
    shuffle_into(f"s3://{bucket}/in", f"s3://{bucket}/out", overwrite=True, seed=9, **both)
    assert [key for key in s3_server.keys(bucket) if key.startswith("out")] == [
        f"out/{MARKER}",
        names[0],
    ]
    loader, _ = StructuredDataset.create_dataloader(f"s3://{bucket}/out", **options)
    assert [i for batch in loader for i in batch["id"].tolist()] == in_order(seed=9)


def test_uploads_that_were_interrupted(
    source: Path, s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    class Stop(Exception):
        pass

    def progress(stage: str, share: float) -> None:
        if stage == "writing" and share > 0.5:
            raise Stop

    options = {
        "target_options": s3_server.storage_options,
        "work_dir": tmp_path / "work",
        "file_rows": 500,
    }
    with pytest.raises(Stop):
        shuffle_into(source, f"s3://{bucket}/out", progress=progress, **options)
    before = s3_server.keys(bucket)
    assert len(before) == 4
    assert f"out/{MARKER}" not in before
    assert shuffle_into(source, f"s3://{bucket}/out", **options).resumed
    loader, _ = StructuredDataset.create_dataloader(
        f"s3://{bucket}/out", storage_options=s3_server.storage_options
    )
    assert [i for batch in loader for i in batch["id"].tolist()] == in_order()
    assert not (tmp_path / "work").exists()


def test_a_bucket_that_is_missing(source: Path, s3_server: S3Server, tmp_path: Path) -> None:
    target, options = "s3://no-such-bucket/out", s3_server.storage_options
    with pytest.raises(WriteError, match="no-such-bucket"):
        shuffle_into(source, target, target_options=options, work_dir=tmp_path / "work")


def test_azure_with_leave_to_write_and_without(
    source: Path, azure_server: AzureServer, tmp_path: Path
) -> None:
    container = azure_server.make_container(f"shuffle-{uuid4().hex[:12]}")
    target = f"az://{container}/out"
    where = {"account_name": azure_server.account, "endpoint": azure_server.url}
    may_read = {**where, "sas_token": azure_server.sas_token()}
    work = tmp_path / "work"
    with pytest.raises(WriteError, match=r"writing az://.*part-00000.*403") as refused:
        shuffle_into(source, target, target_options=may_read, work_dir=work)
    assert "check the credentials" in str(refused.value)
    assert may_read["sas_token"].partition("sig=")[2] not in str(refused.value)
    assert not any(
        may_read["sas_token"] in path.read_text("latin-1") for path in work.rglob("*.jsonl")
    )
    may_write = {**where, "account_key": azure_server.key}
    assert shuffle_into(source, target, target_options=may_write, work_dir=work).resumed
    loader, _ = StructuredDataset.create_dataloader(target, storage_options=may_read)
    assert [i for batch in loader for i in batch["id"].tolist()] == in_order()


def test_any_filesystem_of_fsspec(source: Path, tmp_path: Path) -> None:
    target = f"memory://shuffled-{uuid4().hex}"
    shuffle_into(source, target, work_dir=tmp_path / "work", file_rows=1_700)
    loader, _ = StructuredDataset.create_dataloader(target)
    assert [i for batch in loader for i in batch["id"].tolist()] == in_order()


def test_a_marker_that_another_process_has_removed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes may find the marker of an older copy at the same time."""
    target = f"memory://shuffled-{uuid4().hex}"
    status = RemoteStore.status

    def found(store: RemoteStore, path: str) -> DataFileInfo | None:
        return DataFileInfo(path, file_size=1) if path.endswith(MARKER) else status(store, path)

    monkeypatch.setattr(RemoteStore, "status", found)
    shuffle_into(source, target, work_dir=tmp_path / "work", file_rows=1_700)
    loader, _ = StructuredDataset.create_dataloader(target)
    assert [i for batch in loader for i in batch["id"].tolist()] == in_order()


def test_what_cannot_be_written_to(source: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be written to"):
        shuffle_into(source, "https://127.0.0.1:9/out", work_dir=tmp_path / "work")


@pytest.mark.parametrize("nested", [False, True])
def test_dictionaries_that_grow_from_file_to_file(tmp_path: Path, nested: bool) -> None:
    """Check dictionaries that grow, because an Arrow file has only one for each column."""
    (tmp_path / "in").mkdir()
    texts = [[f"{file} {row % 3}" for row in range(1_000)] for file in (0, 1, 0, 2)]
    for number, text in enumerate(texts):
        column = pa.array(text).dictionary_encode()
        if nested:
            column = pa.StructArray.from_arrays([column], ["inner"])
        with pa.ipc.new_file(
            tmp_path / "in" / f"{number}.arrow", pa.schema([("c", column.type)])
        ) as file:
            file.write_table(pa.table({"c": column}))
    copy_rows(tmp_path / "in", tmp_path / "out", target_format="arrow", row_group_rows=700)
    loader, _ = StructuredDataset.create_dataloader(tmp_path / "out", output_format="arrow")
    found = [value for batch in loader for value in batch["c"].to_pylist()]
    expected = [one for text in texts for one in text]
    assert found == ([{"inner": one} for one in expected] if nested else expected)


# --- tables


def test_lance(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.lance"
    report = shuffle_into(source, target, file_rows=1_000, memory_bytes="1MiB")
    table = lance.dataset(target)
    assert (report.rows, len(report.parts)) == (ROWS, 3)
    assert len(table.get_fragments()) == 3
    assert table.to_table()["id"].to_pylist() == in_order()
    assert table.to_table()["text"].to_pylist() == [f"row {i}" for i in in_order()]
    with pytest.raises(OptionError, match="not empty"):
        shuffle_into(source, target)
    shuffle_into(source, target, overwrite=True, seed=3)
    assert lance.dataset(target).to_table()["id"].to_pylist() == in_order(seed=3)
    assert beside(target) == []


def test_lance_shows_nothing_before_the_end(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.lance"

    class Stop(Exception):
        pass

    def progress(stage: str, share: float) -> None:
        if stage == "writing" and share == 1:
            raise Stop
        if stage == "writing":
            with pytest.raises(ValueError, match="not found"):
                lance.dataset(target)

    with pytest.raises(Stop):
        shuffle_into(source, target, file_rows=1_000, progress=progress)
    version = lance.dataset(target).version
    assert shuffle_into(source, target, file_rows=1_000).resumed
    assert lance.dataset(target).version == version
    assert lance.dataset(target).to_table()["id"].to_pylist() == in_order()


def test_a_damaged_source_is_no_failure_of_lance(tmp_path: Path) -> None:
    """Check the error of a source: Lance only passes on its text, without its type and remedy."""
    table = pa.table({"id": range(50_000)})
    pq.write_table(table, tmp_path / "in.parquet", use_dictionary=False, compression="none")
    data = bytearray((tmp_path / "in.parquet").read_bytes())
    data[1_000:300_000] = bytes(299_000)
    (tmp_path / "in.parquet").write_bytes(data)
    with pytest.raises(ReadError, match=r"in\.parquet.*not readable"):
        copy_rows(tmp_path / "in.parquet", tmp_path / "out.lance")


def test_lance_beside_other_files(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out.lance").mkdir()
    (tmp_path / "out.lance" / "a.parquet").write_text("")
    with pytest.raises(OptionError, match="not a Lance table"):
        shuffle_into(source, tmp_path / "out.lance", overwrite=True)


class Notebook:
    """A target defined by a user."""

    pages: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, options: TargetOptions) -> None:
        self.name = options.location

    def refuse(self, schema: pa.Schema) -> None:
        if self.name in self.pages:
            raise OptionError("there is one")

    def write(
        self, part: int, parts: int, schema: pa.Schema, groups: Iterator[pa.Table]
    ) -> Receipt:
        tables = list(groups)
        self.pages[f"{self.name}/{part}"] = pa.concat_tables(tables)
        return {"rows": sum(table.num_rows for table in tables), "page": part}

    def holds(self, receipt: Receipt, run: str) -> bool:
        return f"{self.name}/{receipt['page']}" in self.pages

    def commit(
        self, schema: pa.Schema, receipts: Sequence[Receipt], facts: Mapping[str, Any]
    ) -> None:
        pages = [self.pages.pop(f"{self.name}/{receipt['page']}") for receipt in receipts]
        self.pages[self.name] = pa.concat_tables(pages)


def test_a_target_of_somebody_else(source: Path, tmp_path: Path) -> None:
    register_target("notebook", Notebook)
    target = tmp_path / "out"
    shuffle_into(source, target, target_format="notebook", file_rows=700, row_group_rows=50)
    assert list(Notebook.pages) == [str(target)]
    assert Notebook.pages[str(target)]["id"].to_pylist() == in_order()
    with pytest.raises(OptionError, match="there is one"):
        shuffle_into(source, target, target_format="notebook")


def test_the_marker_says_what_the_copy_is(source: Path, tmp_path: Path) -> None:
    shuffle_into(source, tmp_path / "out", seed=-3, row_group_rows=250)
    marker = json.loads((tmp_path / "out" / MARKER).read_text())
    assert {name: marker[name] for name in ("rows", "seed", "format", "row_group_rows")} == {
        "rows": ROWS,
        "seed": -3,
        "format": "parquet",
        "row_group_rows": 250,
    }


def test_help_names_every_target(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["shuffle-into", "--help"])
    output = capsys.readouterr().out
    with pytest.raises(OptionError, match="must be one of") as refused:
        target_kind("none", "out")
    known = {"parquet", "arrow", "lance"}
    assert all(kind in str(refused.value) and kind in output for kind in known)
