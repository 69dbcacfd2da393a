"""Find the rank of this process, and the number of ranks that share the data."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from torch import distributed as dist

from headrace.errors import OptionError

logger = logging.getLogger(__name__)

_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),  # and DeepSpeed's
    ("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
    ("MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    # SLURM_NTASKS is set in a batch script too, which is one process; this only by srun
    ("SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_SET_BY_SRUN = {"MPI", "SLURM"}
_DATA_PARALLEL = {"data", "hsdp", "ddp", "replicate", "shard", "batch"}
_DATA_PARALLEL_STARTS = ("dp", "data_", "fsdp")
_SAME_DATA = {"tp", "cp", "pp", "sp", "tensor", "context", "pipeline", "sequence"}


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank of this process among those that share the data."""

    rank: int = 0
    size: int = 1
    source: str = "one process"
    """Where the numbers come from."""
    members: tuple[int, ...] | None = None
    """Ranks of all these processes in torch.distributed; None if there is no process group."""


def given_ranks(rank: int | None, world_size: int | None) -> Ranks:
    """Return the ranks that were given as numbers; one process if none were given."""
    if rank is None and world_size is None:
        return Ranks()
    for name, value in (("rank", rank), ("world_size", world_size)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise OptionError(f"rank and world_size belong together, and {name} is {value!r}")
    assert rank is not None
    assert world_size is not None
    if not 0 <= rank < world_size:
        raise OptionError(f"rank must be from 0 to world_size - 1, not {rank} of {world_size}")
    return Ranks(rank, world_size, "rank and world_size")


def find_ranks(
    rank: int | None = None,
    world_size: int | None = None,
    *,
    accelerator: Any = None,
    process_group: Any = None,
    device_mesh: Any = None,
) -> Ranks:
    """Return the rank of this process, from the first of these sources that knows it.

    The sources are: the numbers given, the process group or the data-parallel dimensions of the
    mesh, the accelerator, an initialised torch.distributed, and the environment of a launcher. If
    none of them knows it, this is the only process.
    """
    if rank is not None or world_size is not None:
        found = _in_default_group(given_ranks(rank, world_size))
    elif process_group is not None:
        found = _group_ranks(process_group)
    elif device_mesh is not None:
        found = _mesh_ranks(device_mesh, "device_mesh")
    elif accelerator is not None:
        found = _accelerator_ranks(accelerator)
    elif is_initialised():
        found = replace(_group_ranks(dist.group.WORLD), source="torch.distributed")
    else:
        found = _environment_ranks()
    if found.size > 1:
        logger.info("rank %d of %d (from %s)", found.rank, found.size, found.source)
    return found


# --- torch.distributed


def is_initialised() -> bool:
    """Return True if there is a default process group."""
    return dist.is_available() and dist.is_initialized()


def _in_default_group(ranks: Ranks) -> Ranks:
    """Add the members of the default process group, if it has as many ranks."""
    if is_initialised() and (ranks.rank, ranks.size) == (dist.get_rank(), dist.get_world_size()):
        return replace(ranks, members=tuple(range(ranks.size)))
    return ranks


def _group_ranks(group: Any) -> Ranks:
    if not is_initialised():
        raise OptionError("process_group needs an initialised torch.distributed")
    outside = group is dist.GroupMember.NON_GROUP_MEMBER
    if not outside and not isinstance(group, dist.ProcessGroup):
        raise OptionError(f"process_group must be a torch.distributed group, not {group!r}")
    if outside or dist.get_rank(group) < 0:
        raise OptionError("this process is not in process_group: do not make a loader in it")
    members = tuple(dist.get_process_group_ranks(group))
    return Ranks(dist.get_rank(group), len(members), "process_group", members)


def _accelerator_ranks(accelerator: Any) -> Ranks:
    mesh = getattr(accelerator, "torch_device_mesh", None)
    if mesh is not None:
        return _mesh_ranks(mesh, "the accelerator's mesh")
    try:
        rank, size = accelerator.process_index, accelerator.num_processes
    except AttributeError:
        raise OptionError(
            "accelerator must have process_index and num_processes, as accelerate.Accelerator "
            f"has, and {type(accelerator).__name__} has not"
        ) from None
    return _in_default_group(replace(given_ranks(rank, size), source="accelerator"))


def _mesh_ranks(mesh: Any, source: str) -> Ranks:
    """Return the rank among processes that differ in data-parallel dimensions only."""
    if not all(hasattr(mesh, name) for name in ("mesh", "mesh_dim_names", "get_coordinate")):
        raise OptionError(f"device_mesh must be a DeviceMesh, not {mesh!r}")
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise OptionError("this process is not in device_mesh: do not make a loader in it")
    names = mesh.mesh_dim_names
    dims = _data_dims(names, mesh.mesh.ndim)
    place = tuple(slice(None) if dim in dims else at for dim, at in enumerate(coordinate))
    members = tuple(int(member) for member in mesh.mesh[place].flatten())
    if names is not None:
        source = f"{source}: {', '.join(names[dim] for dim in dims)}"
    return Ranks(members.index(dist.get_rank()), len(members), source, members)


def _data_dims(names: tuple[str, ...] | None, ndim: int) -> list[int]:
    """Return the dimensions of a mesh along which data differs."""
    if names is None:
        if ndim > 1:
            _refuse_mesh(f"a device_mesh of {ndim} dimensions without names")
        return [0]
    for name in names:
        if _is_data_parallel(name) and not _SAME_DATA.isdisjoint(name.lower().split("_")):
            _refuse_mesh(f"dimension {name!r} of device_mesh joins peers that read the same data")
    if ndim == 1:  # sliced on purpose, whatever its name
        if names[0].lower() in _SAME_DATA | {"ep", "expert"}:
            _refuse_mesh(f"the peers along {names[0]!r} of device_mesh read the same data")
        return [0]
    dims = [dim for dim, name in enumerate(names) if _is_data_parallel(name)]
    if not dims:
        _refuse_mesh(f"no dimension of device_mesh {names} is known to be data-parallel")
    return dims


def _is_data_parallel(name: str) -> bool:
    return name.lower() in _DATA_PARALLEL or name.lower().startswith(_DATA_PARALLEL_STARTS)


def _refuse_mesh(reason: str) -> NoReturn:
    raise OptionError(
        f"{reason}; pass the sub-mesh of the data-parallel peers, such as "
        'device_mesh=mesh["dp"], or rank= and world_size='
    )


# --- launchers


def _environment_ranks() -> Ranks:
    for launcher, rank_name, size_name in _LAUNCHERS:
        rank, size = os.environ.get(rank_name), os.environ.get(size_name)
        if (rank is None and size is None) or (launcher == "SLURM" and size is None):
            continue
        if launcher in _SET_BY_SRUN and _is_at_slurm_terminal():
            continue
        source = f"{launcher}'s {rank_name} and {size_name}"
        numbers = [int(text) for text in (rank, size) if text and text.isascii() and text.isdigit()]
        if len(numbers) == 2 and numbers[0] < numbers[1]:
            return Ranks(numbers[0], numbers[1], source)
        raise OptionError(
            f"{source} are not a rank and a larger number of ranks: {rank_name}="
            f"{rank or '(not set)'}, {size_name}={size or '(not set)'}; set both or neither, pass "
            "rank= and world_size=, or make the loader after torch.distributed is initialised"
        )
    return Ranks()


def _is_at_slurm_terminal() -> bool:
    """Return True if this process was started by hand in the shell of ``srun --pty``.

    That shell is task 0 of a step. Tasks that an inner srun starts have its variables, too, but no
    terminal.
    """
    if "SLURM_PTY_PORT" not in os.environ or os.environ.get("SLURM_TASK_PID") == str(os.getpid()):
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY))
    except OSError:
        return False
    return True
