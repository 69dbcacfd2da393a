"""FSDP2 on CPU: shards of the model, and shares of the rows."""

from __future__ import annotations

from jobs import DIE_AT, ROWS, SAVED_AT, STEPS, Job, check_lives


def test_killed_and_resumed(job: Job) -> None:
    job.torchrun("fsdp", die_at=DIE_AT)
    job.torchrun("fsdp")
    check_lives(job)


def test_resumed_by_one_rank(job: Job) -> None:
    job.torchrun("fsdp", die_at=DIE_AT)
    job.torchrun("fsdp", ranks=1)
    (alone,) = job.notes("second", ranks=1)
    kept = [note for rank in job.notes("first") for note in rank[STEPS:SAVED_AT]]
    ids = [row for note in kept + alone for row in note["ids"]]
    # One rank divides the two lanes of the state: it takes the batches that two ranks would take.
    assert len(alone) == 2 * STEPS - len(kept)
    assert sorted(ids) == list(range(ROWS))
