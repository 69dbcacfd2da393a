"""``write_tar``: rows as samples, and the conversion of their columns."""

from __future__ import annotations

import datetime
import io
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tars_written import hidden, samples

import headrace
from headrace import ConversionError, OptionError
from headrace.write import write_tar


def test_rows(tmp_path: Path) -> None:
    table = pa.table(
        {
            "image": pa.array(
                [{"bytes": b"one", "path": "1.jpg"}, {"bytes": b"two", "path": None}, None]
            ),
            "label": [1, 2, None],
            "txt": ["first", None, "third"],
            "vector": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
            "score": [0.5, float("nan"), float("inf")],
            "day": [datetime.date(2026, 1, 2), None, None],
            "at": pa.array([1, 2, 3], pa.timestamp("ns")),
            "price": [Decimal("1.50"), None, None],
            "tags": [["a"], [], None],
            "__url__": ["u", "u", "u"],
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    write_tar(
        tmp_path / "rows.parquet",
        tmp_path / "out",
        fields={"image": "jpg", "label": "cls", "vector": "npy"},
    )
    found = samples(tmp_path / "out")
    assert list(found) == ["000000000", "000000001", "000000002"]
    assert found["000000000"].keys() == {"jpg", "cls", "txt", "npy", "json"}
    assert found["000000001"].keys() == {"jpg", "cls", "npy", "json"}
    assert found["000000002"].keys() == {"txt", "npy", "json"}
    assert found["000000000"]["jpg"] == b"one"
    assert (found["000000001"]["cls"], found["000000002"]["txt"]) == (b"2", b"third")
    vector = np.load(io.BytesIO(found["000000001"]["npy"]))
    assert vector.dtype == np.float32
    assert vector.tolist() == [3, 4]
    assert json.loads(found["000000000"]["json"]) == {
        **{"score": 0.5, "day": "2026-01-02", "at": "1970-01-01 00:00:00.000000001"},
        **{"price": "1.50", "tags": ["a"]},
    }
    assert json.loads(found["000000002"]["json"])["score"] is None


def test_rows_by_a_key_of_theirs(tmp_path: Path) -> None:
    table = pa.table({"id": [30, 10], "__key__": ["a/x", "b"], "bin": [b"1", b"2"]})
    for name, options, keys in [
        ("own", {}, ["a/x", "b"]),
        ("number", {"keys": "number"}, ["000000000", "000000001"]),
        ("column", {"key_column": "id"}, ["30", "10"]),
    ]:
        report = write_tar(table, tmp_path / name, **options)
        assert list(samples(tmp_path / name)) == keys
        assert report.rows == 2
    assert samples(tmp_path / "own")["b"] == {"bin": b"2", "json": b'{"id":10}'}
    with pytest.raises(ConversionError, match="row 1 has no key"):
        write_tar(pa.table({"__key__": ["a", None], "bin": [b"", b""]}), tmp_path / "null")
    assert not hidden(tmp_path)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"a": [1]}, {"fields": {"b": "jpg"}}, "no column 'b'"),
        ({"a": [1]}, {"key_column": "b"}, "no column 'b'"),
        ({"json": ["{}"], "a": [1]}, {}, "several columns would become the field 'json'"),
        (
            {"a": [b""], "b": [b""]},
            {"fields": {"a": "b"}},
            "several columns would become the field 'b'",
        ),
        ({"image/data": [b""]}, {}, "not 'image/data'"),
        ({"__key__": ["a"]}, {}, "no column can become a field"),
        ({"__key__": ["a.jpg"], "bin": [b""]}, {}, "has a dot in its last part"),
        ({"__key__": ["a", "a"], "bin": [b"", b""]}, {}, 'comes twice .* keys="number"'),
        ({"a": [1]}, {"keys": "prefix"}, "only if the source is tars"),
        ({"a": [1]}, {"keys": "new"}, 'keys must be "keep"'),
        ({"a": [1]}, {"metadata": "x"}, "metadata is for tar"),
        ({"a": [1]}, {"format": "folder"}, "format applies to paths only"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_rows_that_are_no_samples(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        write_tar(pa.table(columns), tmp_path / "out", **options)
    assert os.listdir(tmp_path) == []


def test_no_rows(tmp_path: Path) -> None:
    report = write_tar(pa.table({"bin": pa.array([], pa.binary())}), tmp_path / "out")
    assert [part["name"] for part in report.parts] == ["shard_00000.tar"]
    assert len(headrace.open(str(tmp_path / "out")).backend) == 0
