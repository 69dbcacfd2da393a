"""Launchers other than torchrun: real MPI, and SLURM and Horovod by the variables they set."""

from __future__ import annotations

import sys

import pytest
from jobs import BIN, DIE_AT, HERE, Job, check_lives, free_port

AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
OPEN_MPI = (BIN.parent / "openmpi" / "bin" / "mpirun", "-n", 2)
MPICH = (BIN / "mpiexec.hydra", "-n", 2)
BY_HAND = """
RANK_VARIABLE=0 "$@" & first=$!
RANK_VARIABLE=1 "$@"
code=$?
wait $first || code=$?
exit $code
"""


def by_hand(variable: str) -> tuple[str, ...]:
    """Return a shell command that starts two ranks, which differ in one variable."""
    return ("bash", "-c", BY_HAND.replace("RANK_VARIABLE", variable), "launcher")


@pytest.mark.parametrize(
    ("launcher", "environment"),
    [
        pytest.param(OPEN_MPI, AS_ROOT, id="Open MPI"),
        pytest.param(MPICH, {}, id="MPICH"),
        pytest.param(
            by_hand("SLURM_PROCID"),
            {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"},
            id="SLURM",
        ),
        pytest.param(by_hand("HOROVOD_RANK"), {"HOROVOD_SIZE": "2"}, id="Horovod"),
    ],
)
def test_killed_and_resumed(
    job: Job, launcher: tuple[object, ...], environment: dict[str, str]
) -> None:
    example = (sys.executable, HERE / "run_example.py", "launchers", job.folder)
    job.run(
        *(*launcher, *example, "--die-at", DIE_AT),
        fails=True,
        MASTER_PORT=free_port(),
        **environment,
    )
    assert (job.folder / "died").exists()
    job.run(*launcher, *example, MASTER_PORT=free_port(), **environment)
    check_lives(job)
