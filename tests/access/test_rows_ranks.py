"""Training over rows: two ranks in step that stop in mid-epoch, Accelerate and Lightning."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rank_jobs import PATIENCE_S, run_ranks
from row_tables import ROWS, make_table, write_shards
from warm_interpreters import run_warm

from headrace.access import GlobalShuffleSampler

SCRIPTS = Path(__file__).parent / "rank_scripts"
SOURCES = Path(__file__).parents[2] / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}


def test_two_ranks_train_and_resume(tmp_path: Path) -> None:
    write_shards(tmp_path, make_table())
    script = str(SCRIPTS / "training_over_rows.py")
    commands = [[script, str(tmp_path), str(rank)] for rank in range(2)]
    run_ranks(commands, [ENVIRONMENT] * 2)
    first, second = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]

    assert sorted(first["torch"] + second["torch"]) == list(range(ROWS))
    assert first["state"]["steps"] == second["state"]["steps"]
    assert [rank["state"]["ranks"][0] for rank in (first, second)] == [0, 1]
    for epoch, parts in enumerate((("begun", "rest"), ("next",))):
        rows_of_ranks = [[row for part in parts for row in rank[part]] for rank in (first, second)]
        together = [row for pair in zip(*rows_of_ranks, strict=True) for row in pair]
        assert together == GlobalShuffleSampler(ROWS, 7).indices(0, ROWS, epoch=epoch).tolist()


def test_accelerate_and_lightning_go_through_epochs() -> None:
    script = SCRIPTS / "frameworks_over_rows.py"
    ran = run_warm(script, env=ENVIRONMENT, timeout_s=PATIENCE_S)
    assert ran.returncode == 0, ran.stderr[-6000:]
    result = json.loads(ran.stdout.splitlines()[-1])
    sampler = GlobalShuffleSampler(100, 3)
    expected = [sampler.indices(0, 100, epoch=epoch).tolist() for epoch in range(3)]
    assert result["accelerate"] == {"epochs": expected, "rest": expected[0][32:]}
    assert result["lightning"] == expected
