"""The example of each engine runs on two ranks, stops at its end, and continues from there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from launching import run_script

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = 880
STEPS = 14
"""of each of two ranks: 26 batches of 32 rows and two that share the last 48 rows"""


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 4)
    table = pa.table({"id": range(ROWS), "x": vectors, "y": x.sum(axis=1)})
    pq.write_table(table, folder / "rows.parquet", row_group_size=100)
    return folder


def steps_of_ranks(output: str) -> list[tuple[int, int]]:
    """Parse the steps of each rank from one pipe, where lines of ranks may be interleaved."""
    found = re.findall(r"rank (\d): (\d+) steps", output)
    return sorted((int(rank), int(steps)) for rank, steps in found)


@pytest.mark.parametrize("name", ["accelerate_loop", "lightning_module"])
def test_example_runs_on_two_ranks(name: str, features: Path, tmp_path: Path) -> None:
    output = run_script(EXAMPLES / f"{name}.py", features, tmp_path, ranks=2)
    assert steps_of_ranks(output) == [(0, STEPS), (1, STEPS)], output
    assert any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["ddp", "stateful_dataloader"])
def test_example_continues_from_its_checkpoint(name: str, features: Path, tmp_path: Path) -> None:
    example = EXAMPLES / f"{name}.py"
    output = run_script(example, features, tmp_path, ranks=2)
    assert steps_of_ranks(output) == [(0, STEPS), (1, STEPS)], output
    check_parts(tmp_path)
    output = run_script(example, features, tmp_path, ranks=2)
    assert steps_of_ranks(output) == [(0, STEPS - 10), (1, STEPS - 10)], output


def test_example_of_one_process_continues_from_its_checkpoint(
    features: Path, tmp_path: Path
) -> None:
    assert steps_of_ranks(run_script(EXAMPLES / "train.py", features, tmp_path)) == [(0, 28)]
    check_parts(tmp_path)
    assert steps_of_ranks(run_script(EXAMPLES / "train.py", features, tmp_path)) == [(0, 3)]


def check_parts(checkpoints: Path) -> None:
    """Check that model, optimizer and loader are in every checkpoint."""
    files = list(checkpoints.glob("*.pt"))
    assert files
    for file in files:
        assert {"model", "optimizer", "loader"} <= set(torch.load(file, weights_only=False))


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example_chooses_its_device(example: Path) -> None:
    assert re.search(r"torch\.cuda\.is_available\(\)|\.get_device\(\)", example.read_text())
