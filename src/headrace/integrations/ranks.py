"""Gather one state for the loaders of all ranks over torch.distributed."""

from __future__ import annotations

from typing import Any, Literal

from torch import distributed as dist

from headrace.loader import StatefulLoader, merge_states

__all__ = ["gather_state"]


def gather_state(loader: StatefulLoader, *, unused_batches: Literal[0, 1] = 0) -> dict[str, Any]:
    """Return one state for the loaders of all ranks, which a job of any size can load.

    Every rank has to call it, between the same two steps. All of them get the same state, so that
    one rank can save it. Without torch.distributed, or if ``rank=`` and ``world_size=`` of the
    loader differ from those of the process group, it is the state of this rank alone.

    Args:
        loader: The loader of this rank.
        unused_batches: Number of batches that were taken from the loader and not trained on.

    Returns:
        A state for ``load_state_dict``.

    Example::

        state = gather_state(loader)
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "loader": state}, "checkpoint.pt")
    """
    state = loader.state_dict(unused_batches=unused_batches)
    members = _members(loader)
    if len(members) == 1:
        return state
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, state)
    return merge_states([gathered[member] for member in members])


def _members(loader: StatefulLoader) -> tuple[int, ...]:
    """Return the ranks in torch.distributed of the processes that share the data of a loader."""
    ranks = loader.dataset.ranks
    if not dist.is_available() or not dist.is_initialized():
        return (0,)
    if ranks.members is not None:
        return ranks.members
    if ranks.size == dist.get_world_size():  # the loader was made before the process group
        return tuple(range(ranks.size))
    return (0,)
