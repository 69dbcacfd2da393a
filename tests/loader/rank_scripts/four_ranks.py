"""The ranks of four processes, by each way to ask for them."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from headrace.errors import OptionError
from headrace.loader.ranks import Ranks, find_ranks


def look_around(rank: int) -> dict[str, Ranks | str]:
    """Return the answers to all questions about the place of a rank."""
    os.environ |= {"RANK": "8", "WORLD_SIZE": "9"}
    pair = dist.new_group([1, 3])
    backwards = dist.new_group([3, 2, 1, 0])
    other = SimpleNamespace(process_index=rank % 2, num_processes=2)
    same = SimpleNamespace(process_index=rank, num_processes=4)
    return (
        {
            "default": outcome(),
            "numbers of the default group": outcome(rank=rank, world_size=4),
            "other numbers": outcome(rank=rank % 2, world_size=2),
            "numbers before group": outcome(rank=0, world_size=2, process_group=backwards),
            "group": outcome(process_group=pair),
            "all in a group": outcome(process_group=backwards, accelerator=other),
            "accelerator of the default group": outcome(accelerator=same),
            "other accelerator": outcome(accelerator=other),
            "no group": outcome(process_group="dp"),
            "no mesh": outcome(device_mesh=4),
            "no accelerator": outcome(accelerator="gpu"),
        }
        | meshes(other)
        | slices(other)
    )


def meshes(accelerator: Any) -> dict[str, Ranks | str]:
    def mesh(*names: str, shape: tuple[int, ...] = (2, 2)) -> DeviceMesh:
        return init_device_mesh("cpu", shape, mesh_dim_names=names or None)

    dp_tp = mesh("dp", "tp")
    accelerator_of_mesh = SimpleNamespace(torch_device_mesh=dp_tp, **vars(accelerator))
    return {
        "dp tp": outcome(device_mesh=dp_tp, accelerator=accelerator),
        "tp dp": outcome(device_mesh=mesh("tp", "dp")),
        "replicate shard": outcome(device_mesh=mesh("dp_replicate", "dp_shard")),
        "three": outcome(device_mesh=mesh("FSDP", "cp", "data_x", shape=(2, 1, 2))),
        "experts": outcome(device_mesh=mesh("dp_shard_mod_ep", "dp_shard_in_ep")),
        "mesh of an accelerator": outcome(accelerator=accelerator_of_mesh),
        "unknown names": outcome(device_mesh=mesh("rows", "columns")),
        "two without names": outcome(device_mesh=mesh()),
        "one without name": outcome(device_mesh=mesh(shape=(4,))),
        "with context": outcome(device_mesh=mesh("dp_shard_cp", "tp")),
        "part of the processes": outcome(device_mesh=DeviceMesh("cpu", [1, 3])),
        "numbers before mesh": outcome(rank=0, world_size=3, device_mesh=dp_tp),
    }


def slices(accelerator: Any) -> dict[str, Ranks | str]:
    whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    rows = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "expert"))
    cube = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp_replicate", "tp", "dp_shard"))
    return {
        "slice dp": outcome(device_mesh=whole["dp"], accelerator=accelerator),
        "slice tp": outcome(device_mesh=whole["tp"]),
        "slice of any name": outcome(device_mesh=rows["rows"]),
        "slice of experts": outcome(device_mesh=rows["expert"]),
        "slice of two": outcome(device_mesh=cube["dp_replicate", "dp_shard"]),
    }


def outcome(**options: Any) -> Ranks | str:
    """Return the ranks, or the message of the error."""
    try:
        return find_ranks(**options)
    except OptionError as error:
        return str(error)
