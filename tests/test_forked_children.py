"""Children forked by foreign code, as a DataLoader of torch does by default.

What survives a fork continues to work. The rest is refused with an error that names the remedy.
Nothing hangs or crashes. The parent has read, and reads on in a thread, while 50 children are
forked.
"""

from __future__ import annotations

import json
import uuid
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.feather as pf
import pyarrow.orc as po
import pyarrow.parquet as pq
import pytest
from forked_children import AT_ONCE, CHILDREN
from sample_tars import write_tar
from servers.http_files import HttpServer
from servers.s3 import S3Server
from warm_interpreters import run_warm

ROWS = 600
TABLE = pa.table({"id": range(ROWS), "text": [f"row {number}" for number in range(ROWS)]})
ALL = -(-CHILDREN // AT_ONCE) * AT_ONCE


def ends(kind: str, location: object, *, before: str = "read", **options: Any) -> dict[str, int]:
    """Return how the children end, of a process that has read or that only forks."""
    script = Path(__file__).with_name("forked_children.py")
    result = run_warm(script, kind, location, json.dumps(options), before, ROWS)
    assert result.returncode == 0, result.stderr
    outcomes: dict[str, int] = json.loads(result.stdout)
    assert set(outcomes) <= {"read", "refused"}, result.stderr
    return outcomes


def parquet() -> bytes:
    stream = BytesIO()
    pq.write_table(TABLE, stream, row_group_size=100)
    return stream.getvalue()


def write_files(folder: Path, form: str) -> Path:
    """Write two files of one format."""
    folder = folder / form
    folder.mkdir()
    for number in range(2):
        half = TABLE.slice(number * ROWS // 2, ROWS // 2)
        path = folder / f"{number}.{form}"
        if form == "parquet":
            pq.write_table(half, path, row_group_size=100)
        elif form == "orc":
            po.write_table(half, path)
        elif form == "csv":
            pc.write_csv(half, path)
        elif form == "arrow":
            pf.write_feather(half, path, compression="uncompressed", chunksize=100)
        else:
            lines = "\n".join(map(json.dumps, half.to_pylist()))
            path.write_text(lines + "\n")
    return folder


@pytest.mark.parametrize("form", ["parquet", "orc", "csv", "jsonl", "arrow"])
def test_local_files_are_streamed(tmp_path: Path, form: str) -> None:
    folder = write_files(tmp_path, form)
    assert ends("stream", folder, format=form) == {"read": ALL}


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_rows_of_local_files_are_read_by_index(tmp_path: Path, form: str) -> None:
    folder = write_files(tmp_path, form)
    assert ends(f"{form.title()}Backend", folder) == {"read": ALL}


@pytest.mark.parametrize("kind", ["tar stream", "tar rows"])
def test_local_tars_are_read(tmp_path: Path, kind: str) -> None:
    for shard in range(2):
        numbers = range(shard * ROWS // 2, (shard + 1) * ROWS // 2)
        members = [(f"{number:04d}.id", b"%d" % number) for number in numbers]
        write_tar(tmp_path / f"{shard}.tar", members)
    assert ends(kind, tmp_path) == {"read": ALL}


@pytest.mark.parametrize(("before", "how"), [("read", "refused"), ("only forked", "read")])
def test_web_servers_are_refused_if_the_parent_has_read_from_one(
    http_server: HttpServer, before: str, how: str
) -> None:
    url = http_server.put("a.parquet", parquet())
    assert ends("stream", url, before=before) == {how: ALL}


@pytest.mark.parametrize(("before", "how"), [("read", "refused"), ("only forked", "read")])
@pytest.mark.parametrize("client", ["stream", "given"])
def test_object_stores_are_refused_if_the_parent_has_used_them(
    s3_server: S3Server, client: str, before: str, how: str
) -> None:
    bucket = s3_server.make_bucket(f"forks-{uuid.uuid4().hex[:12]}")
    s3_server.put(bucket, "a.parquet", parquet())
    if client == "stream":
        where, options = f"s3://{bucket}/a.parquet", {"storage_options": s3_server.storage_options}
    else:
        where = f"{bucket}/a.parquet"
        options = {
            "access_key": s3_server.key,
            "secret_key": s3_server.secret,
            "endpoint_override": s3_server.url,
            "region": s3_server.region,
        }
    assert ends(client, where, before=before, **options) == {how: ALL}


def test_a_filesystem_with_threads_that_the_parent_has_made_is_refused(
    http_server: HttpServer,
) -> None:
    assert ends("given", http_server.put("a.parquet", parquet())) == {"refused": ALL}


@pytest.mark.parametrize(("before", "how"), [("read", "refused"), ("only forked", "read")])
def test_array_records_are_refused_if_the_parent_has_used_the_package(
    tmp_path: Path, before: str, how: str
) -> None:
    path = tmp_path / "a.array_record"
    write = "import sys, pyarrow as pa; from headrace.write import write_array_record"
    code = f"{write}; write_array_record(pa.table({{'id': range({ROWS})}}), sys.argv[1])"
    assert run_warm("-c", code, path).returncode == 0
    assert ends("ArrayRecordBackend", path, before=before) == {how: ALL}


@pytest.mark.parametrize(("before", "how"), [("read", "refused"), ("only forked", "read")])
def test_lance_is_refused_if_the_parent_has_used_it(tmp_path: Path, before: str, how: str) -> None:
    path = tmp_path / "a.lance"
    code = "import sys, lance, pyarrow as pa; lance.write_dataset("
    code += f"pa.table({{'id': range({ROWS})}}), sys.argv[1])"
    assert run_warm("-c", code, path).returncode == 0
    assert ends("LanceBackend", path, before=before) == {how: ALL}
