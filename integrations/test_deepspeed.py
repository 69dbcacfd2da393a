"""DeepSpeed ZeRO on CPU with gloo, under its own launcher and under torchrun."""

from __future__ import annotations

from jobs import BIN, DIE_AT, HERE, Job, check_lives, free_port


def test_killed_and_resumed(job: Job) -> None:
    job.run(
        *(BIN / "deepspeed", "--num_accelerators", 2, "--master_port", free_port()),
        *("--no_local_rank", HERE / "run_example.py", "deepspeed_zero", job.folder),
        *("--die-at", DIE_AT),
        fails=True,
    )
    assert (job.folder / "died").exists()
    job.torchrun("deepspeed_zero")
    check_lives(job)
