"""Lightning with ``HeadraceCallback``: a resumed run continues with the very next batch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from launching import SCRIPTS, results_of, run_script

ROWS = 1037
KEPT_ROWS = {i for i in range(ROWS) if i % 3 == 0 or i > ROWS * 0.6}
SANITY_ROWS = 400

Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def alone(uneven_rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("lightning-1")
    run_script(SCRIPTS / "lightning_runs.py", uneven_rows, folder, 1)
    return results_of(folder, 1)


@pytest.fixture(scope="module")
def together(uneven_rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("lightning-2")
    run_script(SCRIPTS / "lightning_runs.py", uneven_rows, folder, 2, ranks=2)
    return results_of(folder, 2)


def check_resumed(results: dict[str, Any], checkpoints: int) -> None:
    whole = [rows for _, _, rows in results["whole"]]
    assert len(results["resumed"]) == checkpoints
    for name, (count, rest) in results["resumed"].items():
        assert [rows for _, _, rows in rest] == whole[count:], name


def epoch_rows(ranks: Results, kind: str, epoch: int) -> Counter[int]:
    steps = [step for rank in ranks for step in rank[kind]["whole"] if step[0] == epoch]
    return Counter(row for _, _, rows in steps for row in rows)


@pytest.mark.parametrize(
    ("kind", "checkpoints"),
    [
        ("counted", 9),
        ("filtered", 9),
        ("by steps", 3),
        ("limited", 3),
        ("limited, filtered", 3),
        ("reloaded", 3),
        ("validated", 5),
        ("two loaders", 3),
        ("stopped", 2),
    ],
)
def test_one_rank_resumes_exactly(alone: Results, kind: str, checkpoints: int) -> None:
    check_resumed(alone[0][kind], checkpoints)


@pytest.mark.parametrize(
    ("kind", "checkpoints"), [("counted", 3), ("filtered", 9), ("pad", 3), ("workers", 3)]
)
def test_two_ranks_resume_exactly(together: Results, kind: str, checkpoints: int) -> None:
    for rank in together:
        check_resumed(rank[kind], checkpoints)


def test_one_rank_reads_every_row_in_every_epoch(alone: Results) -> None:
    for epoch in range(3):
        assert epoch_rows(alone, "counted", epoch) == Counter(range(ROWS))
        assert epoch_rows(alone, "filtered", epoch) == Counter(KEPT_ROWS)
        assert epoch_rows(alone, "reloaded", epoch) == Counter(range(ROWS))


def test_lightning_does_not_share_the_rows_a_second_time(together: Results) -> None:
    for epoch in range(3):
        counted = epoch_rows(together, "counted", epoch)
        assert counted == Counter(range(ROWS))
        assert set(epoch_rows(together, "pad", epoch)) == KEPT_ROWS


@pytest.mark.parametrize("kind", ["counted", "filtered", "reloaded", "by steps", "validated"])
def test_every_epoch_has_an_order_of_its_own(alone: Results, kind: str) -> None:
    first = {tuple(rows) for _, step, rows in alone[0][kind]["whole"] if step == 0}
    assert len(first) == 3


def test_adaptive_balance_loses_and_repeats_nothing(alone: Results) -> None:
    whole = alone[0]["adaptive"]["whole"]
    assert len(alone[0]["adaptive"]["resumed"]) == 9
    for name, (count, rest) in alone[0]["adaptive"]["resumed"].items():
        for epoch in range(3):
            steps = [*whole[:count], *rest]
            rows = Counter(row for at, _, ids in steps if at == epoch for row in ids)
            assert rows == Counter(range(ROWS)), name


@pytest.mark.parametrize("kind", ["limited", "limited, filtered"])
def test_epochs_that_are_cut_short_differ(alone: Results, kind: str) -> None:
    epochs = [epoch_rows(alone, kind, epoch) for epoch in range(3)]
    assert [rows.total() for rows in epochs] == [6 * 32] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_predictions_of_every_row(alone: Results) -> None:
    rows = Counter(row for batch in alone[0]["predicted"] for row in batch)
    assert rows == Counter(dict.fromkeys(range(ROWS), 2))


def test_validation_is_complete_after_a_sanity_check(alone: Results, together: Results) -> None:
    sanity, *epochs = alone[0]["counted"]["validated"]
    assert sanity == list(range(SANITY_ROWS))
    assert [sorted(rows) for rows in epochs] == [list(range(ROWS))] * 3
    _, *of_ranks = zip(*(rank["counted"]["validated"] for rank in together), strict=True)
    for epoch in of_ranks:
        assert {row for rows in epoch for row in rows} == set(range(ROWS))
