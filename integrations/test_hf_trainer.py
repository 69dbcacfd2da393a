"""Hugging Face Trainer over two ranks neither shards nor skips a second time."""

from __future__ import annotations

from jobs import DIE_AT, Job, check_lives


def test_killed_and_resumed(job: Job) -> None:
    job.torchrun("hf_trainer", die_at=DIE_AT)
    job.torchrun("hf_trainer")
    check_lives(job)
