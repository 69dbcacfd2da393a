"""Local files are identified by content: a state works with copies, and not with changed files."""

from __future__ import annotations

import logging
import pickle
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
import torch
from array_record.python.array_record_module import ArrayRecordWriter
from sample_tars import write_tar

from headrace import (
    ArrayRecordDataset,
    StateMismatchError,
    StructuredDataset,
    TarDataset,
    merge_states,
)
from headrace.loader._fingerprint import content_digest
from headrace.model import DataFileInfo, FileList
from headrace.testing import saved

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

ROWS = 30_000


def table(start: int) -> pa.Table:
    """Return rows whose values have the same number of digits, and cannot be compressed."""
    ids = np.arange(start, start + ROWS) + 10_000_000
    noise = np.random.default_rng(start).integers(10**17, 10**18, ROWS)
    return pa.table({"id": ids, "noise": noise})


def write_arrow(rows: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows, 1000)


def write_records(path: Path, first: int) -> None:
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for record in range(40):
        writer.write(bytes([first, record]) * 2000)
    writer.close()


def members(first: int, content: bytes) -> list[tuple[str, bytes]]:
    return [(f"{first}{number:05}.txt", content * 5000) for number in range(40)]


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "parquet": lambda rows, path: pq.write_table(
        rows, path, row_group_size=500, compression="none", use_dictionary=False
    ),
    "orc": lambda rows, path: pyarrow.orc.write_table(rows, str(path), stripe_size=1 << 16),
    "csv": lambda rows, path: pyarrow.csv.write_csv(rows, path),
    "arrow": write_arrow,
}


def structured(folder: Path, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(folder, format=None, num_workers=0, **options)[0]


def tars(folder: Path, **options: Any) -> Any:
    chosen = {"batch_size": 8, "columns": ["__key__"], "num_workers": 0, **options}
    return TarDataset.create_dataloader(folder, **chosen)[0]


def records(folder: Path, **options: Any) -> Any:
    files = sorted(map(str, folder.glob("*.array_record")))
    chosen = {"batch_size": 8, "num_workers": 0, **options}
    return ArrayRecordDataset.create_dataloader(files, **chosen)[0]


def written(kind: str, folder: Path) -> tuple[Path, Callable[..., Any]]:
    """Write a folder of two files, and return it with the function that makes its loader."""
    folder.mkdir()
    if kind == "tar":
        for number in range(2):
            write_tar(folder / f"{number}.tar", members(number, b"a"))
        return folder, tars
    if kind == "array_record":
        for number in range(2):
            write_records(folder / f"{number}.array_record", number)
        return folder, records
    for number in range(2):
        WRITERS[kind](table(number * ROWS), folder / f"part-{number}.{kind}")
    return folder, structured


kinds = pytest.mark.parametrize("kind", [*WRITERS, "tar", "array_record"])


def frozen(batches: Any) -> list[str]:
    return [repr(sorted(batch.items(), key=str)) for batch in batches]


@kinds
def test_a_copy_goes_on_and_says_so_once(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, make = written(kind, tmp_path / "data")
    loader = make(folder)
    running = iter(loader)
    for _ in range(3):
        next(running)
    state = saved(loader)
    rest = frozen(running)

    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(folder, copy, copy_function=shutil.copyfile)
    for path in folder.iterdir():
        path.touch()
    path = min(folder.iterdir())
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    caplog.set_level(logging.INFO, "headrace")
    for place in (folder, copy):
        caplog.clear()
        resumed = make(place)
        resumed.load_state_dict(state)
        assert frozen(resumed) == rest
        records_ = [r for r in caplog.records if "content is the same" in r.message]
        assert [record.levelname for record in records_] == ["INFO"]
        following = saved(resumed)  # of the files as they are now
        caplog.clear()
        make(place).load_state_dict(following)
        assert not [r for r in caplog.records if "content is the same" in r.message]


@pytest.mark.parametrize("kind", ["parquet", "csv", "arrow", "tar", "array_record"])
def test_a_changed_file_of_the_same_size_is_refused(kind: str, tmp_path: Path) -> None:
    """Reorder rows within their row groups, so that footers and their statistics stay the same."""
    folder, make = written(kind, tmp_path / "data")
    state = saved(make(folder))
    path = max(folder.iterdir())
    size = path.stat().st_size
    if kind == "tar":
        write_tar(path, members(1, b"b"))
    elif kind == "array_record":
        write_records(path, 3)
    else:
        WRITERS[kind](table(ROWS).take(np.arange(ROWS) ^ 1), path)
    assert path.stat().st_size == size
    with pytest.raises(StateMismatchError, match="files"):
        make(folder).load_state_dict(state)


def test_a_file_that_changed_before_the_state_was_taken_is_refused(tmp_path: Path) -> None:
    """Change a file during the epoch: some of its rows may have been read before that."""
    folder, make = written("csv", tmp_path / "data")
    loader = make(folder)
    next(iter(loader))
    path = max(folder.iterdir())
    WRITERS["csv"](table(ROWS).take(np.arange(ROWS) ^ 1), path)
    state = saved(loader)
    path.touch()
    with pytest.raises(StateMismatchError, match="files"):
        make(folder).load_state_dict(state)


def test_states_of_ranks_with_copies_of_their_own_are_merged(tmp_path: Path) -> None:
    folder, make = written("parquet", tmp_path / "data")
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    ranks = [make(place, rank=rank, world_size=2) for rank, place in enumerate((folder, copy))]
    ids = [batch["id"] for loader in ranks for batch in islice(loader, 5)]
    states = [saved(loader) for loader in ranks]
    assert states[0]["plan"][0] != states[1]["plan"][0]
    alone = make(copy)
    alone.load_state_dict(merge_states(states))
    ids += [batch["id"] for batch in alone]
    assert sorted(torch.cat(ids).tolist()) == list(range(10_000_000, 10_000_000 + 2 * ROWS))
    path = copy / "part-1.parquet"
    WRITERS["parquet"](table(ROWS).take(np.arange(ROWS) ^ 1), path)
    other = saved(make(copy, rank=1, world_size=2))
    with pytest.raises(StateMismatchError, match="different jobs"):
        merge_states([saved(make(folder, rank=0, world_size=2)), other])


def test_files_are_read_only_for_a_state(tmp_path: Path) -> None:
    folder, make = written("csv", tmp_path / "data")
    loader = make(folder)
    list(loader)
    content = loader.dataset.epochs.fingerprint.content
    assert not content.cache_info().currsize
    state = saved(loader)
    assert content.cache_info().currsize
    assert content() == state["plan"][1]
    resumed = make(folder)
    resumed.load_state_dict(state)  # times of change suffice
    list(resumed)
    assert not resumed.dataset.epochs.fingerprint.content.cache_info().currsize


def listed(folder: Path) -> FileList:
    files = []
    for path in sorted(folder.iterdir()):
        status = path.stat()
        files.append(DataFileInfo(str(path), status.st_size, etag=f"{status.st_mtime_ns:x}"))
    return FileList(files)


def content_of(folder: Path) -> str | None:
    return content_digest(listed(folder), [str(folder)])


def write_changed(path: Path, content: bytes, place: int) -> None:
    changed = bytearray(content)
    changed[place] ^= 1
    path.write_bytes(changed)


@pytest.mark.parametrize("size", [1, 4095, 65_536])
def test_all_of_a_small_file_counts(tmp_path: Path, size: int) -> None:
    content = np.random.default_rng(size).bytes(size)
    path = tmp_path / "file"
    path.write_bytes(content)
    before = content_of(tmp_path)
    for place in {0, size // 3, size // 2, size - 1}:
        write_changed(path, content, place)
        assert content_of(tmp_path) != before
    path.write_bytes(content)
    assert content_of(tmp_path) == before
    (tmp_path / "empty").touch()
    assert content_of(tmp_path) != before


def test_of_a_large_file_sixteen_samples_count(tmp_path: Path) -> None:
    size = 1_000_000
    content = np.random.default_rng(0).bytes(size)
    path = tmp_path / "file"
    path.write_bytes(content)
    before = content_of(tmp_path)
    for sample in range(16):
        write_changed(path, content, (size - 4096) * sample // 15 + 4000)
        assert content_of(tmp_path) != before, sample


@pytest.mark.parametrize("kind", ["parquet", "orc", "arrow"])
def test_all_of_a_footer_counts(kind: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(2**62, size=(200, 2000))
    wide = pa.table({f"column {n}": values for n, values in enumerate(noise)})
    path = tmp_path / f"a.{kind}"
    WRITERS[kind](wide, path)
    content = path.read_bytes()
    assert len(content) > 500_000
    before = content_of(tmp_path)
    footer = {
        "parquet": lambda: int.from_bytes(content[-8:-4], "little"),
        "arrow": lambda: int.from_bytes(content[-10:-6], "little"),
        "orc": lambda: pyarrow.orc.ORCFile(path).file_footer_length,
    }[kind]()
    assert footer > 4096 + 500
    for place in range(footer - 100, 4096, -1000):
        write_changed(path, content, len(content) - place)
        assert content_of(tmp_path) != before, place


def test_the_ends_of_many_files_count(tmp_path: Path) -> None:
    """Check that only the head and the tail of each file are read where there are over 10,000."""
    for number in range(10_001):
        (tmp_path / f"{number:05}").write_bytes(b"x")
    content = np.random.default_rng(0).bytes(50_000)
    path = tmp_path / "00000"
    path.write_bytes(content)
    before = content_of(tmp_path)
    found = []
    for place in (0, 4095, 25_000, 45_905, 49_999):
        write_changed(path, content, place)
        found.append(content_of(tmp_path) != before)
    assert found == [True, True, False, True, True]


def test_a_dataset_pickles_after_its_state_was_taken(tmp_path: Path) -> None:
    pq.write_table(table(0), tmp_path / "a.parquet")
    loader, dataset = StructuredDataset.create_dataloader(tmp_path, batch_size=100, num_workers=0)
    batches = iter(loader)
    next(batches)
    state = saved(loader)
    again = pickle.loads(pickle.dumps(dataset)).loader(num_workers=0)
    again.load_state_dict(state)
    assert next(iter(again))["id"].tolist() == next(batches)["id"].tolist()
