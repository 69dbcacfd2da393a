"""Copies of tars and of records contain the bytes themselves, and not their locations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sample_tars import write_samples, write_tar
from shuffled_rows import copied

from headrace import ArrayRecordDataset, OptionError, TarDataset, shuffle_into
from headrace.access import ArrayRecordBackend
from headrace.write import write_array_record

PAYLOADS = [f"payload {number:02d}".encode() for number in range(20)]


@pytest.fixture(params=["tar", "array_record"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "tar":
        members = [(f"{number:02d}.bin", data) for number, data in enumerate(PAYLOADS)]
        return TarDataset(write_tar(tmp_path / "a.tar", members), columns=["bin"])
    write_array_record(pa.table({"bin": PAYLOADS}), tmp_path / "a.array_record")
    return ArrayRecordDataset(tmp_path / "a.array_record")


def test_a_shuffled_copy_has_the_bytes(dataset: Any, tmp_path: Path) -> None:
    shuffle_into(dataset, tmp_path / "out")
    assert sorted(copied(tmp_path / "out")["bin"].to_pylist()) == PAYLOADS


def test_a_copy_as_records_has_the_bytes(dataset: Any, tmp_path: Path) -> None:
    write_array_record(dataset, tmp_path / "out.array_record")
    backend = ArrayRecordBackend(tmp_path / "out.array_record")
    assert backend.table["bin"].to_pylist() == PAYLOADS


def test_what_functions_return_is_not_copied(tmp_path: Path) -> None:
    folder = write_samples(tmp_path / "samples", [3])
    dataset = TarDataset(folder, decode={"cls": len})
    with pytest.raises(OptionError, match=r"'cls'.*decode="):
        shuffle_into(dataset, tmp_path / "out")
    assert not (tmp_path / "out").exists()
