"""Planning from given metadata: no file is opened, and none exists."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from copy import deepcopy

from data import Data

from arms.registry import arm
from headrace.loader._feed import Board
from headrace.model import Cursor, DataFileInfo, RowGroups
from headrace.plan import EvenBatchesSplitStrategy, plan_lanes

FILES = 100_000
GROUPS_PER_FILE = 10
WORKERS = 2
_GROUP_ROWS = 100_000
_GROUP_BYTES = 100 << 20
"""more than half of the default ``split_bytes``: every row group is its own chunk"""

_given: list[DataFileInfo] = []


def _give(files: int) -> None:
    for number in range(files):
        groups = RowGroups.of([_GROUP_ROWS] * GROUPS_PER_FILE, [_GROUP_BYTES] * GROUPS_PER_FILE)
        _given.append(
            DataFileInfo(
                f"/data/year={number % 10}/part-{number:08d}.parquet",
                file_size=GROUPS_PER_FILE * _GROUP_BYTES,
                record_count=GROUPS_PER_FILE * _GROUP_ROWS,
                row_groups=groups,
                etag=f"{number:x}",
            )
        )


def _plan_and_send() -> Iterator[int]:
    """Plan as the loader does before its workers read, and receive the plan as one worker does."""
    strategy = EvenBatchesSplitStrategy(batch_size=1024, shuffle=True)
    plan = plan_lanes(strategy, _given, lanes=WORKERS, epoch=0)
    board = Board(0, plan, dict.fromkeys(range(WORKERS), Cursor()))
    files = pickle.loads(pickle.dumps(plan.files, pickle.HIGHEST_PROTOCOL))
    lane = deepcopy(board.read()[1].lane(0))
    yield len(lane.chunks) if len(files) == len(_given) else 0


@arm("planning.whole", reads=None, prepare=lambda: _give(FILES))
def plan_all_files(data: Data) -> Iterator[int]:
    yield from _plan_and_send()


@arm("planning.half", reads=None, prepare=lambda: _give(FILES // 2))
def plan_half_of_the_files(data: Data) -> Iterator[int]:
    yield from _plan_and_send()
