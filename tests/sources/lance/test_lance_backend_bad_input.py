"""What is wrong with a Lance dataset, or with what is asked of it, is said with its place."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lance_elsewhere import Elsewhere

from headrace.errors import (
    MissingExtraError,
    NothingFoundError,
    OptionError,
    ReadError,
    SchemaError,
)
from headrace.sources.lance.backend import LanceBackend


@pytest.fixture
def numbers(elsewhere: Elsewhere, tmp_path: Path) -> Path:
    """Three fragments of a hundred rows."""
    uri = tmp_path / "numbers.lance"
    rows = pa.table({"id": range(300), "text": [f"row {number}" for number in range(300)]})
    elsewhere.write(uri, rows, max_rows_per_file=100)
    return uri


def test_what_is_no_lance_dataset(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("missing.lance", "folder"):
        with pytest.raises(NothingFoundError, match=rf"{name} is not a Lance dataset"):
            LanceBackend(tmp_path / name)


def test_a_version_or_a_tag_that_is_not_there(elsewhere: Elsewhere, numbers: Path) -> None:
    elsewhere.change(numbers, "tags.create", "good", 1)
    for version in (7, "bad"):
        with pytest.raises(NothingFoundError, match=rf"numbers\.lance has no .* {version!r}: "):
            LanceBackend(numbers, version=version)
    with pytest.raises(ReadError, match=r"numbers\.lance cannot be opened"):
        LanceBackend(numbers, version=1 << 70)


def test_numbers_of_numpy_are_numbers(numbers: Path) -> None:
    backend = LanceBackend(numbers, version=np.int64(1), batch_readahead=np.int32(2))
    assert type(backend.version) is int
    assert backend.num_rows == 300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": 1.5}, "version must be an int, not 1.5"),
        ({"version": True}, "version must be"),
        ({"version": -1}, "version must be an int of at least 1"),
        ({"batch_readahead": 0}, "batch_readahead must be an int of at least 1"),
        ({"batch_readahead": "8"}, "batch_readahead must be an int"),
    ],
    ids=["fraction", "flag", "negative", "none ahead", "text"],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        LanceBackend(tmp_path / "missing.lance", **options)


def test_a_column_that_is_not_there(numbers: Path) -> None:
    with pytest.raises(SchemaError, match="no column 'txt'; did you mean 'text'"):
        LanceBackend(numbers).take([0], columns=["txt"])


@pytest.mark.parametrize("damage", ["gone", "cut", "overwritten"])
def test_a_damaged_fragment_is_named(elsewhere: Elsewhere, numbers: Path, damage: str) -> None:
    backend = LanceBackend(numbers)
    broken = numbers / "data" / str(backend.shard_etags[1])
    if damage == "gone":
        broken.unlink()
    elif damage == "cut":
        broken.write_bytes(broken.read_bytes()[:200])
    else:
        broken.write_bytes(bytes(broken.stat().st_size))
    there = elsewhere.backend(numbers)
    place = rf"numbers\.lance \(version 1\) cannot be read: .*fragment 1 \(data/{broken.name}\)"
    with pytest.raises(ReadError, match=place):
        there.take([5, 150, 250])
    with pytest.raises(ReadError, match=place):
        there.slice(90, 120)
    assert there.take([250, 5])["id"].to_pylist() == [250, 5]


def test_a_panic_inside_of_lance_is_an_error_like_others(
    elsewhere: Elsewhere, tmp_path: Path
) -> None:
    """By the name of a column that Lance writes and cannot read."""
    uri = tmp_path / "ticks.lance"
    elsewhere.write(uri, pa.table({"tick`": [1]}))
    with pytest.raises(ReadError, match=r"ticks\.lance \(version 1\) .* Lance failed inside: "):
        elsewhere.backend(uri).take([0])


def test_a_version_that_was_cleaned_up_meanwhile(elsewhere: Elsewhere, numbers: Path) -> None:
    there = elsewhere.backend(numbers, version=1)
    assert there.num_rows() == 300
    elsewhere.write(numbers, pa.table({"id": [1]}), mode="overwrite")
    elsewhere.change(numbers, "cleanup_old_versions", timedelta(0))
    with pytest.raises(ReadError, match=r"\(version 1\) cannot be read: .*[Nn]ot found"):
        there.take([0])
    with pytest.raises(NothingFoundError, match=r"no version or tag 1: .* removed by a cleanup"):
        elsewhere.backend(numbers, version=1).num_rows()


def test_without_pylance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(MissingExtraError, match=r"pylance is not installed.*headrace\[lance\]"):
        LanceBackend(tmp_path / "rows.lance")
