"""Ray Train with two workers on CPU: one is killed, and Ray restarts both."""

from __future__ import annotations

import sys

from jobs import DIE_AT, HERE, SAVED_AT, Job, check_lives


def test_killed_and_restarted_by_ray(job: Job) -> None:
    script = HERE / "run_example.py"
    job.run(sys.executable, script, "ray_train", job.folder, "--die-at", DIE_AT)
    assert (job.folder / "died").exists()
    # Ray records checkpoints beside the training: the last one may have come too late.
    saved_at = job.notes("second")[0][0]["step"] - 1
    assert saved_at in range(5, SAVED_AT + 1, 5)
    check_lives(job, saved_at=saved_at)
