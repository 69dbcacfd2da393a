"""Which format a file has where nobody says so, and what is said of a wrong one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from servers.http_files import HttpServer
from servers.s3 import S3Server

import headrace
from headrace import OptionError, ReadError, SkippedDataWarning, StructuredDataset
from headrace.sources.files._sniffing import HEAD_BYTES, looks_like

TABLE = pa.table({"id": list(range(50)), "name": [f"row {i}" for i in range(50)]})
ROWS = TABLE.to_pylist()


def _write_stream(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def _json(table: pa.Table) -> str:
    return json.dumps(table.to_pylist())


def _jsonl(table: pa.Table) -> str:
    return "".join(json.dumps(row) + "\n" for row in table.to_pylist())


WRITERS: dict[str, Callable[[pa.Table, Path], Any]] = {
    "parquet": pq.write_table,
    "orc": pyarrow.orc.write_table,
    "csv": pyarrow.csv.write_csv,
    "json": lambda table, path: path.write_text(_json(table)),
    "jsonl": lambda table, path: path.write_text(_jsonl(table)),
    "arrow": pyarrow.feather.write_feather,
}
ALIKE = {"json", "jsonl"}


def write(format_: str, path: Path, table: pa.Table = TABLE) -> Path:
    WRITERS[format_](table, path)
    return path


def ids(dataset: Any) -> list[int]:
    return [row for batch in dataset for row in batch["id"]]


def opened(path: Any, *args: Any, **options: Any) -> list[int]:
    return ids(StructuredDataset(path, *args, output_format="dict", batch_size=7, **options))


@pytest.mark.parametrize("name", ["data", "data.bin", "über dir/日本 #1%"])
@pytest.mark.parametrize("format_", WRITERS)
def test_the_first_bytes_tell_where_no_extension_does(
    tmp_path: Path, format_: str, name: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    write(format_, path)
    assert opened(path) == list(range(50))
    assert ids(headrace.open(path, output_format="dict")) == list(range(50))
    if "." not in name:
        assert opened(path.parent) == list(range(50))


def test_a_stream_of_arrow_is_known(tmp_path: Path) -> None:
    _write_stream(TABLE, tmp_path / "data")
    assert opened(tmp_path / "data") == list(range(50))


@pytest.mark.parametrize("codec", ["gzip", "zstd", "bz2", "lz4"])
@pytest.mark.parametrize("text", [_json, _jsonl, None])
def test_compressed_text_is_known(tmp_path: Path, codec: str, text: Any) -> None:
    plain = write("csv", tmp_path / "plain").read_bytes() if text is None else text(TABLE).encode()
    (tmp_path / "plain").unlink(missing_ok=True)
    ending = {"gzip": "gz", "zstd": "zst"}.get(codec, codec)
    path = tmp_path / f"events.{ending}"
    with pa.CompressedOutputStream(path, codec) as out:
        out.write(plain)
    assert opened(path) == list(range(50))
    path.rename(tmp_path / "events")
    with pytest.raises(
        OptionError, match=rf"compressed with {codec}; let its name end in \.{ending}"
    ):
        opened(tmp_path / "events")


@pytest.mark.parametrize("given", WRITERS)
@pytest.mark.parametrize("written", WRITERS)
def test_a_wrong_format_says_what_the_file_looks_like(
    tmp_path: Path, written: str, given: str
) -> None:
    path = write(written, tmp_path / "data")
    if written == given or {written, given} == ALIKE:
        assert opened(path, given) == list(range(50))
        return
    with pytest.raises(ReadError, match=rf"data: .*looks like .*; use format='{written}'"):
        opened(path, given)


@pytest.mark.parametrize("extension", WRITERS)
@pytest.mark.parametrize("written", WRITERS)
def test_a_wrong_extension_says_what_the_file_looks_like(
    tmp_path: Path, written: str, extension: str
) -> None:
    path = write(written, tmp_path / f"data.{extension}")
    if written == extension or {written, extension} == ALIKE:
        assert opened(path) == list(range(50))
        return
    with pytest.raises(ReadError, match=rf"looks like .*; use format='{written}'"):
        opened(path)
    assert opened(path, written) == list(range(50))


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("format_", ["parquet", "orc", "arrow", "csv"])
def test_few_rows(tmp_path: Path, format_: str, rows: int) -> None:
    path = write(format_, tmp_path / "data", TABLE.slice(0, rows))
    assert opened(path) == list(range(rows))


@pytest.mark.parametrize(
    ("head", "format_"),
    [
        (b"", None),
        (b"P", None),
        (b"\n", None),
        (b"[", "json"),
        (b"{", "jsonl"),
        (b"[]", "json"),
        (b"\xef\xbb\xbf[{}]", "json"),
        (b'  {\n  "a": 1\n}', "json"),
        (b'{"a": "' + b"x" * HEAD_BYTES, "jsonl"),
        (b"\xef\xbb\xbfa,b\n1,2\n", "csv"),
        (b'a,"b\nc,d"\n1,2\n', "csv"),
        (b"a,b", "csv"),
        (b"[x],[y]\n1,2\n", "csv"),
        ("größe,x\n1,2\n".encode("latin-1"), "csv"),
        (b"Dear all, this is\na letter\n", None),
        (b"id\n1\n2\n", None),
        (b"a\tb\n1\t2\n", None),
        (b"\x00\x01\x02,\x03\n", None),
        (gzip.compress(b"a,b\n1,2\n", mtime=0), "csv"),
        (gzip.compress(b"\x00" * 100, mtime=0), None),
        (b"\x1f\x8b", None),
        (b"\xff\xff\xff\xff\x80\x00\x00\x00", "arrow"),
        (b"\xff\xff\xff\xff", None),
        (b"PAR1", "parquet"),
        (b"ORC", "orc"),
    ],
)
def test_looks(head: bytes, format_: str | None) -> None:
    assert looks_like(head) == format_


@pytest.mark.parametrize("content", [b"x", b"\x00", b"hello\n"])
def test_what_looks_like_nothing_has_to_be_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data").write_bytes(content)
    with pytest.raises(OptionError, match=r"data: neither its extension nor its content .*format="):
        StructuredDataset(tmp_path / "data")


def test_empty_files_tell_nothing_and_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(OptionError, match="no file with content"):
        StructuredDataset(tmp_path)
    write("csv", tmp_path / "b")
    assert opened(tmp_path) == list(range(50))


def test_files_of_another_format_among_many(tmp_path: Path) -> None:
    write("parquet", tmp_path / "a")
    write("csv", tmp_path / "b")
    with pytest.raises(ReadError, match=r"b: .*looks like CSV; use format='csv'"):
        StructuredDataset(tmp_path)
    with pytest.warns(SkippedDataWarning, match="looks like CSV"):
        assert opened(tmp_path, on_error="skip") == list(range(50))


def test_a_folder_of_another_format_says_which(tmp_path: Path) -> None:
    write("parquet", tmp_path / "a.parquet")
    write("parquet", tmp_path / "b.parquet")
    with pytest.raises(FileNotFoundError, match=r"these look like parquet: use format='parquet'"):
        StructuredDataset(tmp_path, "csv")


def test_a_name_that_says_compressed_and_a_file_that_is_not(tmp_path: Path) -> None:
    write("csv", tmp_path / "a.csv.gz")
    with pytest.raises(ReadError, match="does not look compressed, but like CSV"):
        StructuredDataset(tmp_path)
    (tmp_path / "a.csv.gz").unlink()
    (tmp_path / "b.csv").write_bytes(gzip.compress(b"id,x\n1,2\n" * 20))
    with pytest.raises(ReadError, match=r"CSV compressed with gzip; let its name end in \.gz"):
        StructuredDataset(tmp_path)


def test_options_of_csv_are_believed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('{"a": 1}\n{"a": 2}\n')
    named = pyarrow.csv.ReadOptions(column_names=["id"])
    assert opened(tmp_path, format_options={"read_options": named}) == ['{"a": 1}', '{"a": 2}']


@pytest.mark.parametrize("format_", WRITERS)
def test_a_file_on_a_web_server(http_server: HttpServer, tmp_path: Path, format_: str) -> None:
    large = pa.table({"id": range(20_000), "x": [i / 7 for i in range(20_000)]})
    body = write(format_, tmp_path / "data", large).read_bytes()
    url = http_server.put("some folder/dätä", body)
    assert opened(url) == list(range(20_000))


def test_a_format_is_found_by_one_small_request(http_server: HttpServer, tmp_path: Path) -> None:
    url = http_server.put("data", write("parquet", tmp_path / "data").read_bytes())
    StructuredDataset(url, "parquet")
    before = len(http_server.log)
    StructuredDataset(url)
    assert len(http_server.log) - before <= before + 1


@pytest.mark.parametrize("format_", ["parquet", "csv", "jsonl"])
def test_a_file_in_s3(s3_server: S3Server, tmp_path: Path, format_: str) -> None:
    bucket = s3_server.make_bucket(f"sniffed-{format_}")
    s3_server.put(bucket, "a/dätä", write(format_, tmp_path / "data").read_bytes())
    options = s3_server.storage_options
    assert opened(f"s3://{bucket}/a/dätä", storage_options=options) == list(range(50))
    assert opened(f"s3://{bucket}/a", storage_options=options) == list(range(50))
    wrong = "csv" if format_ == "parquet" else "parquet"
    with pytest.raises(ReadError, match=f"use format='{format_}'"):
        opened(f"s3://{bucket}/a", wrong, storage_options=options)
