"""Split strategies, the user's own and the built-in ones, from files to batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from small_files import ROWS, all_ids, write_parquet

from headrace import (
    DataFileInfo,
    FileSplit,
    PlanError,
    RoundRobinSplitStrategy,
    RowRange,
    Split,
    StructuredDataset,
    TargetSizeSplitStrategy,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"))


class Backwards:
    """Files from last to first, dealt to the lanes in turn; in epoch 1 from first to last."""

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> list[Split]:
        order = list(files) if epoch % 2 else list(files)[::-1]
        return [
            Split(lane, [FileSplit(file) for file in order[lane::num_workers]])
            for lane in range(num_workers)
        ]


class Faulty:
    """Whole files, except that the first one is replaced by the given ranges."""

    def __init__(self, *ranges: tuple[int, int]) -> None:
        self.ranges = ranges

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> list[Split]:
        first = [FileSplit(files[0], RowRange(*bounds)) for bounds in self.ranges]
        rest = [FileSplit(file) for file in files[1:]]
        return [Split(0, [*first, *rest]), *(Split(n, []) for n in range(1, num_workers))]


class FaultyFromEpoch1:
    """Leaves out the second file in all epochs but the first."""

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> list[Split]:
        kept = [file for number, file in enumerate(files) if epoch == 0 or number != 1]
        chunks = [FileSplit(file) for file in kept]
        return [Split(0, chunks), *(Split(n, []) for n in range(1, num_workers))]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_strategy_of_the_user_is_the_order(data: Path, num_workers: int) -> None:
    loader, dataset = StructuredDataset.create_dataloader(
        data, num_workers=num_workers, batch_size=100, split_strategy=Backwards(), lanes=1
    )
    starts = [0, 400, 401, 701, 951, 951, ROWS]
    files = [list(range(a, b)) for a, b in pairwise(starts)]
    assert all_ids(loader) == list(chain(*files[::-1]))
    assert all_ids(loader) == list(range(ROWS))
    assert dataset.splits[0].file_splits[0].file.path.endswith("part-05.parquet")


@pytest.mark.parametrize("strategy", [Backwards(), RoundRobinSplitStrategy()])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_lanes_of_uneven_length(data: Path, strategy: Any, num_workers: int) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        data, num_workers=num_workers, batch_size=60, split_strategy=strategy, lanes=4
    )
    sizes, ids = [], []
    for batch in loader:
        sizes.append(len(batch["id"]))
        ids += batch["id"].tolist()
    assert sorted(ids) == list(range(ROWS))
    assert len(loader) == len(sizes)
    assert sum(size != 60 for size in sizes) <= 4


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([(0, 399)], r"loses rows 399-400 of .*part-00"),
        ([(1, 399)], r"loses rows 0-1 of .*part-00"),
        ([(0, 100), (200, 200)], r"loses rows 100-200 of .*part-00"),
        ([(0, 400), (10, 5)], r"repeats rows 10-15 of .*part-00"),
        ([(0, 401)], r"part-00"),
        ([(-1, 401)], r"part-00.* is read by one RowRange of integers from 0 on"),
        ([], r"loses rows 0-400 of .*part-00"),
    ],
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_strategy_that_loses_or_repeats_rows_is_refused(
    data: Path, ranges: list[tuple[int, int]], message: str, num_workers: int
) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        StructuredDataset.create_dataloader(
            data, num_workers=num_workers, split_strategy=Faulty(*ranges)
        )
    assert "Faulty" in str(caught.value)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_strategy_that_fails_in_a_later_epoch_is_refused_then(
    data: Path, num_workers: int
) -> None:
    loader, dataset = StructuredDataset.create_dataloader(
        data, num_workers=num_workers, split_strategy=FaultyFromEpoch1()
    )
    assert len(all_ids(loader)) == ROWS
    with pytest.raises(PlanError, match=r"loses rows 0-1 of .*part-01"):
        list(loader)
    with pytest.raises(PlanError, match="FaultyFromEpoch1"):
        _ = dataset.splits


def test_a_strategy_that_cuts_files_anywhere_is_followed(data: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        data,
        num_workers=0,
        batch_size=64,
        split_strategy=Faulty((300, 100), (0, 1), (1, 298), (299, 1)),
    )
    first = [*range(300, 400), 0, *range(1, 299), 299]
    assert all_ids(loader) == [*first, *range(400, ROWS)]


@pytest.mark.parametrize(
    "strategy",
    [
        RoundRobinSplitStrategy(),
        TargetSizeSplitStrategy(split_rows=70),
        TargetSizeSplitStrategy(split_bytes="1KiB"),
    ],
)
def test_strategies_to_choose_from(data: Path, strategy: Any) -> None:
    loader, dataset = StructuredDataset.create_dataloader(
        data, num_workers=2, batch_size=100, split_strategy=strategy
    )
    splits = dataset.splits
    assert [split.id for split in splits] == [0, 1]
    assert sum(split.row_count or 0 for split in splits) == ROWS
    assert sorted(all_ids(loader)) == list(range(ROWS))
    if isinstance(strategy, TargetSizeSplitStrategy):
        counts = [split.row_count or 0 for split in splits]
        assert abs(counts[0] - counts[1]) < 300


def test_splits_show_who_reads_what(data: Path) -> None:
    _, dataset = StructuredDataset.create_dataloader(
        data, num_workers=3, batch_size=100, shuffle=True, split_rows=70
    )
    rows = set()
    for split in dataset.splits:
        for chunk in split.file_splits:
            assert chunk.row_range is not None
            for row in range(chunk.row_range.offset, chunk.row_range.stop):
                rows.add((chunk.file.path, row))
    assert len(rows) == ROWS
    assert [split.row_count for split in dataset.splits] == [400, 400, 354]
    before = [str(s.file_splits[0]) for s in dataset.splits]
    dataset.set_epoch(1)
    assert before != [str(s.file_splits[0]) for s in dataset.splits]
