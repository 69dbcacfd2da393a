"""Checkpoints of Ray Train that hold the loader.

    saved = restore(loader)  # after a failure, or None
    ...
    report({"loss": loss}, loader, {"model": model.state_dict()})

Ray restarts all workers from the last checkpoint that was reported. Every worker writes the state
of its loader into the checkpoint. Workers that restore it merge these states, so that their number
may change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from headrace.errors import MissingExtraError
from headrace.loader import StatefulLoader, merge_states

__all__ = ["report", "restore"]

_PARTS = "parts.pt"


def report(metrics: Mapping[str, Any], loader: StatefulLoader, parts: Mapping[str, Any]) -> None:
    """Report metrics and a checkpoint; every worker has to call it.

    Args:
        metrics: Passed to ``ray.train.report``.
        loader: The loader of this worker; its state is saved.
        parts: Everything else to save, such as the states of model and optimizer. Only the parts of
            the worker of rank 0 are kept.
    """
    train = _ray_train()
    rank = train.get_context().get_world_rank()
    with TemporaryDirectory() as folder:
        (Path(folder) / f"loader-{rank}.json").write_text(json.dumps(loader.state_dict()))
        if rank == 0:
            torch.save(dict(parts), Path(folder) / _PARTS)
        train.report(dict(metrics), checkpoint=train.Checkpoint.from_directory(folder))


def restore(loader: StatefulLoader, **options: Any) -> dict[str, Any] | None:
    """Load the last checkpoint that was reported into a loader.

    Args:
        loader: The loader of this worker.
        options: For ``torch.load``, such as ``map_location``.

    Returns:
        The parts that were saved beside the loader, or None if there is no checkpoint yet.
    """
    checkpoint = _ray_train().get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        parts: dict[str, Any] = torch.load(Path(folder) / _PARTS, weights_only=True, **options)
        states = [json.loads(file.read_text()) for file in Path(folder).glob("loader-*.json")]
    loader.load_state_dict(merge_states(states))
    return parts


def _ray_train() -> Any:
    try:
        import ray.train
    except ImportError:
        raise MissingExtraError(
            'Ray Train is not installed; run: pip install "ray[train]"'
        ) from None
    return ray.train
