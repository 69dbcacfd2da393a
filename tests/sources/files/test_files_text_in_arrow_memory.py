"""What Arrow's threads parse lies in Arrow's memory, so that a process may end right after."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pytest

from headrace import StructuredDataset

ROWS = 40_000


def csv_text() -> bytes:
    return b"id,name\n" + b"".join(b"%d,name %d\n" % (i, i) for i in range(ROWS))


def quoted_csv_text() -> bytes:
    return b"id,name\n" + b"".join(b'%d,"name %d"\n' % (i, i) for i in range(ROWS))


def jsonl_text() -> bytes:
    return b"".join(b'{"id": %d, "name": "name %d"}\n' % (i, i) for i in range(ROWS))


def json_array_text() -> bytes:
    return json.dumps([{"id": i, "name": f"name {i}"} for i in range(ROWS)]).encode()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", csv_text),
        ("b.csv", quoted_csv_text),
        ("c.csv.gz", lambda: gzip.compress(csv_text(), 1)),
        ("d.jsonl", jsonl_text),
        ("e.jsonl.gz", lambda: gzip.compress(jsonl_text(), 1)),
        ("f.json", json_array_text),
    ],
    ids=["csv", "quoted csv", "csv.gz", "jsonl", "jsonl.gz", "json array"],
)
def test_no_parser_is_given_memory_of_python(
    name: str, text: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of Python's would not be counted by Arrow's pool."""
    given: list[tuple[int, int]] = []

    def watched(parse: Callable[..., pa.Table]) -> Callable[..., pa.Table]:
        def parse_and_note(source: pa.BufferReader, *args: Any, **options: Any) -> pa.Table:
            given.append((source.size(), pa.total_allocated_bytes()))
            return parse(source, *args, **options)

        return parse_and_note

    monkeypatch.setattr(pacsv, "read_csv", watched(pacsv.read_csv))
    monkeypatch.setattr(pajson, "read_json", watched(pajson.read_json))
    url = f"memory://text-in-arrow-memory/{name}"
    with fsspec.open(url, "wb") as file:
        file.write(text())
    before = pa.total_allocated_bytes()
    loader, _ = StructuredDataset.create_dataloader(
        url, format=None, batch_size=ROWS, num_workers=0, columns=["id"]
    )
    assert sum(len(batch["id"]) for batch in loader) == ROWS
    assert max(size for size, _ in given) > 400_000
    assert all(allocated - before >= size for size, allocated in given)
