"""Processes that agree, or that lose one of them."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import time
from collections.abc import Callable
from typing import Any

from rank_scripts.rank_processes import refusal
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from headrace.errors import HeadraceError, OptionError
from headrace.loader._agreement import Agreement
from headrace.loader.ranks import Ranks, find_ranks


def agree_in_all_ways(rank: int) -> dict[str, Any]:
    ranks = find_ranks()
    first, second = Agreement(ranks), Agreement(ranks)
    if rank == 0:
        later_on_one = [second.agree(10), first.agree(20)]
        dist.new_group(
            [0], use_local_synchronization=True
        )  # the other ranks do not have this group
        first.close()
        by_name = {name: Agreement(ranks, name=name) for name in ("a", "b")}
    else:
        later_on_one = [second.agree(10 + rank), first.agree(20 + rank)]
        by_name = {name: Agreement(ranks, name=name) for name in ("b", "a")}
    third = Agreement(ranks)
    return {
        "two": later_on_one,
        "after one was closed on one rank": third.agree(-rank),
        "by name": [by_name["a"].agree(rank), by_name["b"].agree(100 + rank)],
        "many": [third.agree(step + rank) for step in range(50)],
        "made and closed": [make_and_close(ranks, step) for step in range(20)],
        "large": third.agree(2**53 + rank),
    }


def make_and_close(ranks: Ranks, count: int) -> tuple[int, int]:
    agreement = Agreement(ranks)
    try:
        return agreement.agree(count - ranks.rank)
    finally:
        agreement.close()


def agree_along_a_mesh(rank: int) -> list[Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "dp"))
    backwards = dist.new_group([3, 0, 2, 1], **({"sort_ranks": False} if has_sort_ranks() else {}))
    along = Agreement(find_ranks(device_mesh=mesh))
    return [along.agree(rank), Agreement(find_ranks(process_group=backwards)).agree(rank)]


def has_sort_ranks() -> bool:
    return "sort_ranks" in dist.new_group.__code__.co_varnames


def use_badly(rank: int) -> dict[str, str]:
    ranks = find_ranks()
    agreement = Agreement(ranks)
    messages = {
        "pickle": refusal(TypeError, pickle.dumps, agreement),
        "copy": refusal(TypeError, copy.deepcopy, agreement),
    }
    agreement.agree(1)
    messages["pickle later"] = refusal(TypeError, pickle.dumps, agreement)
    agreement.close()
    agreement.close()
    messages["closed"] = refusal(OptionError, agreement.agree, 1)
    messages["no members"] = refusal(OptionError, Agreement, Ranks(rank, 2, "numbers"))
    dist.destroy_process_group()
    messages["no group any more"] = refusal(OptionError, Agreement, ranks)
    return messages


def wait_for_lost(rank: int, loss: Callable[[Agreement], None], timeout_s: float) -> Any:
    """Lose rank 1, and return the error of the others and the seconds they waited."""
    agreement = Agreement(find_ranks(), timeout_s=timeout_s)
    if rank == 1:
        loss(agreement)
        return None
    began = time.monotonic()
    try:
        agreement.agree(1)
        agreement.agree(2)
    except HeadraceError as error:
        waited = time.monotonic() - began
        return type(error), str(error), waited, refusal(OptionError, agreement.agree, 3)
    return None


def lose_by_kill(rank: int) -> Any:
    def kill(agreement: Agreement) -> None:
        agreement.agree(1)
        os.kill(os.getpid(), signal.SIGKILL)

    return wait_for_lost(rank, kill, 300.0)


def lose_by_stop(rank: int) -> Any:
    def stop(agreement: Agreement) -> None:
        agreement.agree(1)
        os.kill(os.getpid(), signal.SIGSTOP)

    return wait_for_lost(rank, stop, 2.0)


def lose_before_the_first(rank: int) -> Any:
    return wait_for_lost(rank, lambda agreement: time.sleep(300.0), 2.0)


def lose_by_leaving(rank: int) -> Any:
    return wait_for_lost(rank, lambda agreement: agreement.agree(1), 300.0)
