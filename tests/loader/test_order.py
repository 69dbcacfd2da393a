"""``shuffle=True`` alone shuffles rows, for any layout of files."""

from __future__ import annotations

import json
import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from headrace import OptionError, StructuredDataset
from headrace.loader import _order as order
from headrace.loader import _pipeline as pipeline

ROWS = 20_000


def written(folder: Path, *, files: int = 1, group: int = 1000, width: int = 8) -> Path:
    folder.mkdir(exist_ok=True)
    each = ROWS // files
    for number in range(files):
        ids = np.arange(number * each, (number + 1) * each)
        table = pa.table({"id": ids, **{f"c{i}": ids for i in range(width - 1)}})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=group)
    return folder


def rows_of(folder: Path, **options: Any) -> list[int]:
    options = {"batch_size": 100, "num_workers": 0, "shuffle": True, **options}
    loader, _ = StructuredDataset.create_dataloader(folder, **options)
    return [row for batch in loader for row in batch["id"].tolist()]


def neighbours(rows: list[int]) -> float:
    """Return the share of rows that directly follow the row before them in the file."""
    return sum(after == before + 1 for before, after in pairwise(rows)) / len(rows)


def spread(rows: list[int], size: int = 100) -> float:
    """Return the mean distance between rows of a batch, divided by that of a random batch."""
    batches = np.asarray(rows[: len(rows) // size * size]).reshape(-1, size)
    return float(batches.std(axis=1).mean() / (ROWS / np.sqrt(12)))


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"lanes": 4}, {"drop_last": True}])
@pytest.mark.parametrize("files", [1, 3])
def test_one_file_or_few_are_shuffled_row_by_row(
    tmp_path: Path, files: int, options: dict[str, Any]
) -> None:
    folder = written(tmp_path, files=files)
    rows = rows_of(folder, **options)
    left_out = ROWS // files * files - len(rows)
    assert left_out == (ROWS // files * files % 100 if "drop_last" in options else 0)
    assert len(set(rows)) == len(rows)
    assert neighbours(rows) < 0.01
    assert spread(rows) > 0.9


def test_windows_that_are_handed_out_in_parts_have_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path, files=3)
    whole = rows_of(folder)
    monkeypatch.setattr(pipeline, "_PART_BYTES", 1 << 16)
    loader, _ = StructuredDataset.create_dataloader(
        folder, batch_size=100, num_workers=0, shuffle=True
    )
    batches = iter(loader)
    begun = [row for _ in range(57) for row in next(batches)["id"].tolist()]
    state = json.loads(json.dumps(loader.state_dict()))
    again, _ = StructuredDataset.create_dataloader(
        folder, batch_size=100, num_workers=0, shuffle=True
    )
    again.load_state_dict(state)
    assert begun + [row for batch in again for row in batch["id"].tolist()] == whole


def test_a_single_window_has_chunks_that_threads_can_share(tmp_path: Path) -> None:
    folder = written(tmp_path, files=2, group=500)
    dataset = StructuredDataset(folder, shuffle=True)
    (lane,) = dataset.splits
    sizes = [chunk.row_range.length for chunk in lane.file_splits if chunk.row_range is not None]
    assert sum(sizes) == ROWS
    assert len(sizes) >= 16
    assert max(sizes) <= ROWS // 16 + 500


def test_data_that_is_larger_than_a_window_is_shuffled_in_windows(tmp_path: Path) -> None:
    """Read 20,000 rows of 64 bytes in windows of at most 128 KiB, each of 32 small chunks."""
    folder = written(tmp_path, group=50)
    rows = rows_of(folder, prefetch_bytes="256KiB")
    assert sorted(rows) == list(range(ROWS))
    assert neighbours(rows) < 0.05
    assert spread(rows) > 0.8


@pytest.mark.parametrize(
    ("group", "given", "chosen"),
    [
        (50, None, "windows of 32 chunks of ~"),
        (1000, None, "windows of 12 chunks of ~1,000 rows"),
        (2000, None, "all rows together"),
        (1000, "1GiB", "all rows together"),
    ],
)
def test_a_window_has_room_for_many_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int, given: str | None, chosen: str
) -> None:
    monkeypatch.setattr(order, "_WINDOW_BYTES", 256 << 10)
    folder = written(tmp_path, group=group)
    dataset = StructuredDataset(folder, shuffle=True, prefetch_bytes=given)
    assert chosen in repr(dataset)
    rows = rows_of(folder, prefetch_bytes=given)
    assert sorted(rows) == list(range(ROWS))
    assert spread(rows) > 0.8


@pytest.mark.parametrize(("group", "text"), [(1500, "decoded twice"), (5000, "larger than")])
def test_large_row_groups_are_told(
    tmp_path: Path, group: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = written(tmp_path, group=group)
    with caplog.at_level(logging.WARNING, logger="headrace"):
        rows = rows_of(folder, prefetch_bytes="256KiB")
    assert text in caplog.text
    assert sorted(rows) == list(range(ROWS))
    assert neighbours(rows) < 0.05


def test_lines_of_text_are_shuffled(tmp_path: Path) -> None:
    ids = list(range(ROWS))
    pc.write_csv(pa.table({"id": ids, "x": ids}), tmp_path / "a.csv")
    rows = rows_of(tmp_path, format="csv")
    assert sorted(rows) == ids
    assert neighbours(rows) < 0.01
    assert spread(rows) > 0.9


def test_the_order_is_arithmetic_and_epochs_differ(tmp_path: Path) -> None:
    folder = written(tmp_path, files=3)
    assert rows_of(folder) == rows_of(folder) != rows_of(folder, shuffle_seed=1)
    loader, _ = StructuredDataset.create_dataloader(folder, shuffle=True, num_workers=0)
    epochs = [[row for batch in loader for row in batch["id"].tolist()] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])


@pytest.mark.parametrize("later", [{"prefetch_bytes": "1GiB"}, {"num_workers": 2, "lanes": None}])
def test_a_state_goes_on_where_other_sizes_would_be_chosen(
    tmp_path: Path, later: dict[str, Any]
) -> None:
    """Change memory and workers, which decide the sizes of chunks: a state keeps its sizes."""
    folder = written(tmp_path, group=50)
    first = {"batch_size": 100, "shuffle": True, "num_workers": 0, "prefetch_bytes": "256KiB"}
    loader, _ = StructuredDataset.create_dataloader(folder, **first)  # type: ignore[arg-type]
    batches = iter(loader)
    ids = [row for _ in range(30) for row in next(batches)["id"].tolist()]
    state = json.loads(json.dumps(loader.state_dict()))
    again, _ = StructuredDataset.create_dataloader(folder, **{**first, **later})  # type: ignore[arg-type]
    again.load_state_dict(state)
    rest = [row for batch in again for row in batch["id"].tolist()]
    assert sorted(ids + rest) == list(range(ROWS))
    if later.get("num_workers") is None:
        assert rest == [row for batch in batches for row in batch["id"].tolist()]


def test_mixing_without_shuffle_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path)
    for options in ({"mix": 2}, {"shuffle_buffer_rows": 50}):
        with pytest.raises(OptionError, match="shuffle is False"):
            StructuredDataset(folder, **options)  # type: ignore[arg-type]


def test_chunks_alone_are_permuted_where_that_is_asked_for(tmp_path: Path) -> None:
    rows = rows_of(written(tmp_path), mix=1, split_rows=1000)
    assert neighbours(rows) > 0.99
    assert rows != sorted(rows) == list(range(ROWS))


def test_few_chunks_in_file_order_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = written(tmp_path)
    with caplog.at_level(logging.WARNING, logger="headrace"):
        rows_of(folder)
        rows_of(folder, split_rows=1000)
        assert caplog.text == ""
        assert rows_of(folder, split_rows=ROWS) == list(range(ROWS))
    assert "permutes 1 chunks whose rows stay in file order" in caplog.text


@pytest.mark.parametrize(
    ("memory_gib", "ranks", "mib"),
    [(24, None, 2048), (12, None, 1024), (24, "2", 1024), (17, None, 2048), (1, None, 256)],
)
def test_the_budget_follows_from_memory_and_ranks(
    memory_gib: int, ranks: str | None, mib: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(order, "_memory_bytes", lambda: memory_gib << 30)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    folder = written(tmp_path / "data")
    assert StructuredDataset(folder, shuffle=True).epochs.pipeline.prefetch_bytes == mib << 20
    assert StructuredDataset(folder).epochs.pipeline.prefetch_bytes == 256 << 20
    given = StructuredDataset(folder, shuffle=True, prefetch_bytes="3MiB")
    assert given.epochs.pipeline.prefetch_bytes <= 3 << 20
