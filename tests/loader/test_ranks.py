"""Ranks by number, group, mesh, accelerator or environment, and how they agree."""

from __future__ import annotations

import json
import logging
import os
import pty
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rank_scripts import agreeing_ranks, bare_datasets, four_ranks
from rank_scripts.rank_processes import PATIENCE_S, run_ranks
from small_files import write_parquet
from warm_interpreters import run_warm

from headrace.errors import OptionError, WorkerError
from headrace.loader._agreement import Agreement
from headrace.loader.ranks import Ranks, find_ranks

LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Horovod": ("HOROVOD_RANK", "HOROVOD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPI": ("PMI_RANK", "PMI_SIZE"),
    "MVAPICH2": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "SLURM": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}
SOURCES = Path(__file__).parents[2] / "src"
OTHER_SLURM = ("SLURM_NTASKS", "SLURM_TASK_PID", "SLURM_PTY_PORT", "SLURM_JOB_NAME")


# --- four ranks


@pytest.fixture(scope="module")
def answers_of_four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(four_ranks.look_around, 4, tmp_path_factory.mktemp("four"))


EVERYBODY = [(rank, 4, (0, 1, 2, 3)) for rank in range(4)]
FIRST_DIM = [(0, 2, (0, 2)), (0, 2, (1, 3)), (1, 2, (0, 2)), (1, 2, (1, 3))]
SECOND_DIM = [(0, 2, (0, 1)), (1, 2, (0, 1)), (0, 2, (2, 3)), (1, 2, (2, 3))]
IN_PAIRS = [(0, 2, None), (1, 2, None), (0, 2, None), (1, 2, None)]


@pytest.mark.parametrize(
    ("case", "expected", "source"),
    [
        ("default", EVERYBODY, "torch.distributed"),
        ("numbers of the default group", EVERYBODY, "rank and world_size"),
        ("other numbers", IN_PAIRS, "rank and world_size"),
        ("numbers before group", [(0, 2, None)] * 4, "rank and world_size"),
        ("numbers before mesh", [(0, 3, None)] * 4, "rank and world_size"),
        ("all in a group", EVERYBODY, "process_group"),
        ("accelerator of the default group", EVERYBODY, "accelerator"),
        ("other accelerator", IN_PAIRS, "accelerator"),
        ("dp tp", FIRST_DIM, "device_mesh: dp"),
        ("tp dp", SECOND_DIM, "device_mesh: dp"),
        ("replicate shard", EVERYBODY, "device_mesh: dp_replicate, dp_shard"),
        ("three", EVERYBODY, "device_mesh: FSDP, data_x"),
        ("experts", EVERYBODY, "device_mesh: dp_shard_mod_ep, dp_shard_in_ep"),
        ("mesh of an accelerator", FIRST_DIM, "the accelerator's mesh: dp"),
        ("one without name", EVERYBODY, "device_mesh"),
        ("slice dp", FIRST_DIM, "device_mesh: dp"),
        ("slice of any name", FIRST_DIM, "device_mesh: rows"),
        ("slice of two", EVERYBODY, "device_mesh: dp_replicate, dp_shard"),
    ],
)
def test_four_processes_know_their_place(
    answers_of_four: list[dict[str, Any]], case: str, expected: list[Any], source: str
) -> None:
    result = [answers[case] for answers in answers_of_four]
    assert result == [Ranks(rank, size, source, members) for rank, size, members in expected]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("no group", "process_group must be a torch.distributed group, not 'dp'"),
        ("no mesh", "device_mesh must be a DeviceMesh, not 4"),
        ("no accelerator", "process_index and num_processes"),
        ("unknown names", 'device_mesh=mesh["dp"]'),
        ("two without names", 'device_mesh=mesh["dp"]'),
        ("with context", "'dp_shard_cp' of device_mesh joins peers that read the same data"),
        ("slice tp", "the peers along 'tp' of device_mesh read the same data"),
        ("slice of experts", "the peers along 'expert' of device_mesh read the same data"),
    ],
)
def test_what_says_nothing_of_the_data_is_refused(
    answers_of_four: list[dict[str, Any]], case: str, message: str
) -> None:
    for answers in answers_of_four:
        assert message in answers[case]


@pytest.mark.parametrize(
    ("case", "source"), [("group", "process_group"), ("part of the processes", "device_mesh")]
)
def test_who_is_not_in_the_group_or_mesh_is_told(
    answers_of_four: list[dict[str, Any]], case: str, source: str
) -> None:
    result = [answers[case] for answers in answers_of_four]
    assert result[1::2] == [Ranks(0, 2, source, (1, 3)), Ranks(1, 2, source, (1, 3))]
    assert all(f"not in {source}" in text for text in result[0::2])


# --- the environment


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Remove all variables of launchers from the environment."""
    for name in (*OTHER_SLURM, *(name for pair in LAUNCHERS.values() for name in pair)):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_process_without_launcher_is_alone(environment: pytest.MonkeyPatch) -> None:
    assert find_ranks() == Ranks(0, 1, "one process", None)


def test_a_bare_dataset_in_a_job_warns_once(tmp_path: Path) -> None:
    data = write_parquet(tmp_path / "data", [(100, 10)])
    ranks = run_ranks(bare_datasets.work(data), 2, tmp_path)
    assert sum(int(result["given"][0]) for result in ranks) == 100
    for result in ranks:
        *rows, warning = result["bare"]
        assert rows == ["100"] * 3
        assert "each of the 2 ranks" in warning
        assert "create_dataloader" in warning
        assert len(result["given"]) == 3
        assert result["alone"] == ["100"] * 3
        assert result["loader"] == []


@pytest.mark.parametrize(
    ("workers", "given", "warnings"),
    [(2, {"RANK": "1", "WORLD_SIZE": "3"}, 1), (0, {"RANK": "1"}, 0)],
)
def test_a_bare_dataset_under_a_launcher_warns(
    tmp_path: Path, workers: int, given: dict[str, str], warnings: int
) -> None:
    write_parquet(tmp_path, [(100, 10)])
    code = (
        "from headrace import StructuredDataset; from torch.utils.data import DataLoader; "
        f"loader = DataLoader(StructuredDataset({str(tmp_path)!r}), None, num_workers={workers}); "
        "print(sum(len(batch['id']) for batch in loader))"
    )
    done = run_warm("-c", code, env={**given, "PYTHONPATH": str(SOURCES)}, timeout_s=PATIENCE_S)
    assert done.stdout.strip() == "100"
    assert done.stderr.count("UserWarning: each of the 3 ranks") == warnings


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_is_known_by_its_variables(
    environment: pytest.MonkeyPatch, launcher: str
) -> None:
    rank, size = LAUNCHERS[launcher]
    environment.setenv(rank, "2")
    environment.setenv(size, "4")
    assert find_ranks() == Ranks(2, 4, f"{launcher}'s {rank} and {size}", None)


def test_the_inner_launcher_wins(environment: pytest.MonkeyPatch) -> None:
    for number, (rank, size) in reversed(list(enumerate(LAUNCHERS.values()))):
        environment.setenv(rank, str(number))
        environment.setenv(size, "16")
        assert find_ranks().rank == number


def test_one_process_of_a_launcher_is_fine(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("RANK", "0")
    environment.setenv("WORLD_SIZE", "1")
    assert find_ranks() == Ranks(0, 1, "torchrun's RANK and WORLD_SIZE", None)


def test_numbers_and_accelerator_win_over_the_environment(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.setenv("RANK", "2")
    environment.setenv("WORLD_SIZE", "4")
    accelerator = SimpleNamespace(process_index=5, num_processes=6)
    assert find_ranks(0, 3, accelerator=accelerator) == Ranks(0, 3, "rank and world_size")
    assert find_ranks(accelerator=accelerator) == Ranks(5, 6, "accelerator")


NO_RANKS = [("1", None), (None, "4"), ("x", "4"), ("1", ""), ("-1", "4"), ("4", "4"), ("0", "0")]


@pytest.mark.parametrize(
    ("launcher", "rank", "size"),
    [
        (launcher, *values)
        for launcher in LAUNCHERS
        for values in NO_RANKS
        if (launcher, values) != ("SLURM", ("1", None))  # as in a batch script
    ],
)
def test_half_a_pair_or_nonsense_is_refused(
    environment: pytest.MonkeyPatch, launcher: str, rank: str | None, size: str | None
) -> None:
    for name, value in zip(LAUNCHERS[launcher], (rank, size), strict=True):
        if value is not None:
            environment.setenv(name, value)
    with pytest.raises(OptionError) as caught:
        find_ranks()
    for name, value in zip(LAUNCHERS[launcher], (rank, size), strict=True):
        assert f"{name}={'(not set)' if value is None else value}" in str(caught.value)


def test_one_of_rank_and_world_size_is_refused(environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="belong together"):
        find_ranks(1)
    with pytest.raises(OptionError, match="belong together"):
        find_ranks(None, 2)


def test_a_group_without_torch_distributed_is_refused() -> None:
    with pytest.raises(OptionError, match="initialised"):
        find_ranks(process_group=object())


def test_ranks_are_told(environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    environment.setenv("RANK", "77")
    environment.setenv("WORLD_SIZE", "99")
    with caplog.at_level(logging.INFO, logger="headrace"):
        find_ranks()
        find_ranks(0, 1)
    assert caplog.messages == ["rank 77 of 99 (from torchrun's RANK and WORLD_SIZE)"]
    assert caplog.records[0].levelno == logging.INFO


# --- SLURM


def test_a_batch_script_and_salloc_are_one_process(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("SLURM_NTASKS", "8")
    environment.setenv("SLURM_PROCID", "0")
    environment.setenv("SLURM_TASK_PID", str(os.getppid()))
    assert find_ranks().size == 1


def test_the_interactive_step_of_salloc_is_one_process(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("SLURM_NTASKS", "8")
    environment.setenv("SLURM_PROCID", "0")
    environment.setenv("SLURM_STEP_NUM_TASKS", "1")
    environment.setenv("SLURM_PTY_PORT", "34889")
    assert find_ranks().size == 1


def test_a_step_smaller_than_its_job_counts(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("SLURM_JOB_NAME", "interactive")
    environment.setenv("SLURM_NTASKS", "8")
    environment.setenv("SLURM_PROCID", "1")
    environment.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert find_ranks() == Ranks(1, 2, "SLURM's SLURM_PROCID and SLURM_STEP_NUM_TASKS")


LOOKING_TWICE = """
import os, sys
from headrace.loader.ranks import find_ranks
terminal, shell = sys.argv[1:]
if terminal:
    os.open(terminal, os.O_RDWR)  # a session without a terminal gets the first one that it opens
os.environ["SLURM_TASK_PID"] = str(os.getpid())
if shell and os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
for mpi in (False, True):
    if mpi:
        os.environ.update(PMI_RANK="0", PMI_SIZE="8")
    found = find_ranks()
    print([found.rank, found.size])
"""


@pytest.mark.parametrize(
    ("terminal", "shell", "expected"),
    [
        pytest.param(True, "a shell", [0, 1], id="typed in the shell of srun --pty"),
        pytest.param(True, "", [0, 8], id="srun --pty python"),
        pytest.param(False, "a shell", [0, 8], id="srun of a script in that shell"),
    ],
)
def test_only_who_types_at_the_terminal_of_a_step_is_alone(
    environment: pytest.MonkeyPatch, terminal: bool, shell: str, expected: list[int]
) -> None:
    """Check steps whose MPI sets variables as SLURM does, too.

    Where there is a shell, the first process stands for it, and a child of it looks around.
    """
    for name, value in {"PROCID": 0, "STEP_NUM_TASKS": 8, "PTY_PORT": 34889}.items():
        environment.setenv(f"SLURM_{name}", str(value))
    hosts_end, tasks_end = pty.openpty()
    try:
        name = os.ttyname(tasks_end) if terminal else ""
        done = run_warm("-c", LOOKING_TWICE, name, shell, timeout_s=PATIENCE_S)
    finally:
        os.close(hosts_end)
        os.close(tasks_end)
    assert list(map(json.loads, done.stdout.splitlines())) == [expected] * 2


# --- agreement


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_agree_on_the_smallest_and_the_largest(tmp_path: Path, size: int) -> None:
    last = size - 1
    for result in run_ranks(agreeing_ranks.agree_in_all_ways, size, tmp_path):
        assert result["two"] == [(10, 10 + last), (20, 20 + last)]
        assert result["after one was closed on one rank"] == (-last, 0)
        assert result["by name"] == [(0, last), (100, 100 + last)]
        assert result["many"] == [(step, step + last) for step in range(50)]
        assert result["made and closed"] == [(step - last, step) for step in range(20)]
        assert result["large"] == (2**53, 2**53 + last)


def test_only_data_parallel_peers_agree(tmp_path: Path) -> None:
    result = run_ranks(agreeing_ranks.agree_along_a_mesh, 4, tmp_path)
    assert result == [[(0, 1), (0, 3)]] * 2 + [[(2, 3), (0, 3)]] * 2


def test_what_an_agreement_refuses(tmp_path: Path) -> None:
    for messages in run_ranks(agreeing_ranks.use_badly, 2, tmp_path):
        assert "cannot be pickled" in messages["pickle"]
        assert "cannot be pickled" in messages["copy"]
        assert "cannot be pickled" in messages["pickle later"]
        assert "closed" in messages["closed"]
        for case in ("no members", "no group any more"):
            assert "needs an initialised torch.distributed process group" in messages[case]
            assert "even=False" in messages[case]


def test_ranks_without_a_process_group_cannot_agree() -> None:
    with pytest.raises(OptionError, match="even=False"):
        Agreement(Ranks(0, 2, "torchrun's RANK and WORLD_SIZE"))


# --- lost ranks


@pytest.mark.parametrize(
    ("work", "at_least_s", "at_most_s"),
    [
        (agreeing_ranks.lose_by_kill, 0.0, 100.0),
        (agreeing_ranks.lose_by_leaving, 0.0, 100.0),
        (agreeing_ranks.lose_by_stop, 1.8, 100.0),
        (agreeing_ranks.lose_before_the_first, 1.8, 100.0),
    ],
)
def test_a_lost_rank_is_an_error_and_no_hang(
    tmp_path: Path, work: Callable[[int], Any], at_least_s: float, at_most_s: float
) -> None:
    result = run_ranks(work, 2, tmp_path, die=(1,))
    kind, message, waited_s, afterwards = result[0]
    assert kind is WorkerError
    assert "rank 0 of 2 waited" in message
    assert at_least_s <= waited_s <= at_most_s
    assert "failed before" in afterwards
