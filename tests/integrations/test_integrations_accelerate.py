"""Accelerate with two ranks: every row once, accumulation, states, bare datasets."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from common_ground import write_rows
from launching import SCRIPTS, SOURCES, results_of, run_script

ROWS = 1037
ACCUMULATED = 5


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    data, folder = tmp_path_factory.mktemp("rows"), tmp_path_factory.mktemp("accelerate")
    write_rows(data / "uneven", ROWS)
    write_rows(data / "one row too many", 1025)
    write_rows(data / "even", 1024)
    run_script(SCRIPTS / "accelerate_runs.py", data, folder, ranks=2)
    return results_of(folder, 2)


def rows_of(results: list[dict[str, Any]], kind: str, epoch: int) -> Counter[int]:
    return Counter(
        row for rank in results for batch in rank[kind]["epochs"][epoch] for row in batch
    )


@pytest.mark.parametrize("kind", ["counted", "filtered", "pad"])
def test_accumulation_ends_with_the_last_batch(results: list[dict[str, Any]], kind: str) -> None:
    for rank in results:
        assert rank[kind]["same loader"]
        assert not rank[kind]["in a loader afterwards"]
        for epoch in rank[kind]["epochs"]:
            last = len(epoch)
            assert last % ACCUMULATED
            synced = [step % ACCUMULATED == 0 or step == last for step in range(1, last + 1)]
            assert [sync for _, sync, _ in epoch] == synced
            assert [end for _, _, end in epoch] == [step == last for step in range(1, last + 1)]


def test_a_prepared_loader_reads_every_row_once(results: list[dict[str, Any]]) -> None:
    for epoch in (0, 1):
        steps = [step for rank in results for step in rank["counted"]["epochs"][epoch]]
        rows = Counter(row for batch, _, _ in steps for row in batch)
        assert rows == Counter(range(ROWS))


def test_epochs_are_not_set_back(results: list[dict[str, Any]]) -> None:
    for rank in results:
        first, second = ([batch for batch, _, _ in epoch] for epoch in rank["counted"]["epochs"])
        assert first != second


def test_a_loader_that_does_not_know_the_accelerator_is_left_alone(
    results: list[dict[str, Any]],
) -> None:
    for epoch in (0, 1):
        rows = rows_of(results, "made without the accelerator", epoch)
        assert rows == Counter(range(ROWS))


@pytest.mark.parametrize("kind", ["resume", "resume, filtered"])
def test_states_count_the_batches_that_the_user_has(
    results: list[dict[str, Any]], kind: str
) -> None:
    for rank in results:
        whole = rank[kind]["whole"]
        assert len(rank[kind]["resumed"]) == 8
        for name, (steps, rest) in rank[kind]["resumed"].items():
            assert rest == whole[steps:], name


@pytest.mark.parametrize("dispatch", [True, False])
def test_a_bare_dataset_is_shared_by_accelerate(
    results: list[dict[str, Any]], dispatch: bool
) -> None:
    assert rows_of(results, f"bare, dispatch={dispatch}", 0) == Counter(range(1024))


def test_metrics_leave_out_what_was_padded(results: list[dict[str, Any]]) -> None:
    for rank in results:
        assert sorted(rank["metrics"]) == list(range(1025))


def test_a_loader_is_active_while_it_is_iterated(results: list[dict[str, Any]]) -> None:
    assert [rank["active"] for rank in results] == [[True, True, False]] * 2


def test_engines_are_not_imported_unless_they_are_used(tmp_path: Path) -> None:
    write_rows(tmp_path)
    code = (
        "import sys; import headrace.integrations; from headrace import StructuredDataset; "
        f"loader, _ = StructuredDataset.create_dataloader({str(tmp_path)!r}); "
        "list(loader); loader.state_dict(); "
        "print({'accelerate', 'lightning', 'torchdata'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=400,
        check=True,
    )
    assert done.stdout.strip() == "set()"
