"""torchrun and DistributedDataParallel: even steps, kills, resizes, checkpoints."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from launching import SCRIPTS, results_of, run_script

ROWS = 1037
KEPT_ROWS = {i for i in range(ROWS) if i % 3 == 0 or i > ROWS * 0.6}


@pytest.fixture(scope="module")
def trained(uneven_rows: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ddp")
    run_script(SCRIPTS / "ddp_runs.py", uneven_rows, folder, ranks=2)
    return results_of(folder, 2)


def rows_of_epoch(ranks: list[dict[str, Any]], kind: str, epoch: int) -> Counter[int]:
    return Counter(row for rank in ranks for batch in rank[kind]["epochs"][epoch] for row in batch)


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("counted, drop", set(range(ROWS))),
        ("counted, pad", set(range(ROWS))),
        ("filtered, drop", KEPT_ROWS),
        ("filtered, pad", KEPT_ROWS),
        ("filtered, workers", KEPT_ROWS),
    ],
)
def test_ranks_take_the_same_steps_and_share_the_rows(
    trained: list[dict[str, Any]], kind: str, expected: set[int], epoch: int
) -> None:
    steps = [len(rank[kind]["epochs"][epoch]) for rank in trained]
    assert steps[0] == steps[1] > 0
    rows = rows_of_epoch(trained, kind, epoch)
    repeated = sum(rows.values()) - len(rows)
    if kind == "filtered, pad":
        assert set(rows) == expected
        assert repeated > 0
    else:
        # Where rows are counted the last round is shared: nothing is left out or repeated.
        assert set(rows) == expected if "counted" in kind else set(rows) <= expected
        assert repeated == 0


def test_padded_rows_are_counted(trained: list[dict[str, Any]]) -> None:
    for kind in ("counted, pad", "filtered, pad"):
        counts = [rows_of_epoch(trained, kind, epoch) for epoch in (0, 1)]
        repeated = sum(sum(rows.values()) - len(rows) for rows in counts)
        assert repeated == sum(rank[kind]["padded"] for rank in trained)


@pytest.mark.parametrize("kind", ["counted, drop", "filtered, drop"])
def test_epochs_have_orders_of_their_own(trained: list[dict[str, Any]], kind: str) -> None:
    for rank in trained:
        first, second = rank[kind]["epochs"]
        assert first != second


@pytest.mark.parametrize("kind", ["checkpoints", "filtered checkpoints"])
def test_distributed_checkpoints_resume_exactly(trained: list[dict[str, Any]], kind: str) -> None:
    for rank in trained:
        whole = rank[kind]["whole"]
        assert rank[kind]["stateful"]
        assert len(rank[kind]["resumed"]) == 8
        for name, (steps, rest) in rank[kind]["resumed"].items():
            assert rest, name
            assert rest == whole[steps : steps + len(rest)], name


def test_a_distributed_checkpoint_loads_into_another_number_of_ranks(
    trained: list[dict[str, Any]],
) -> None:
    steps = [batch for rank in trained for batch in rank["resized"]["taken"]]
    for rank in trained:
        rows = Counter(row for batch in [*steps, *rank["resized"]["rest"]] for row in batch)
        assert rows == Counter(range(ROWS))


def test_a_forked_process_survives_agreements_of_its_parent(trained: list[dict[str, Any]]) -> None:
    assert [rank["exit code of a fork"] for rank in trained] == [0, 0]


def test_killed_jobs_of_other_sizes_lose_and_repeat_nothing(
    uneven_rows: Path, tmp_path: Path
) -> None:
    sizes = (2, 1, 2)
    for leg, ranks in enumerate(sizes):
        last = leg == len(sizes) - 1
        args = (uneven_rows, tmp_path, leg, "last" if last else "killed")
        how = {"ranks": ranks, "torchrun": leg == 0, "killed": not last}
        run_script(SCRIPTS / "killed_legs.py", *args, **how)
    saved = [json.loads(path.read_text()) for path in tmp_path.glob("leg-*.json")]
    assert len(saved) == sum(sizes)
    counted = Counter(row for rank in saved for row in rank["rows"]["counted"])
    assert max(counted.values()) == 1
    assert len(counted) == ROWS
    filtered = Counter(row for rank in saved for row in rank["rows"]["filtered"])
    assert set(filtered) == KEPT_ROWS
    assert filtered.total() - len(filtered) == sum(rank["padded"]["filtered"] for rank in saved)
