"""Two ranks of DistributedDataParallel that train on uneven data, and checkpoints of torch."""

from __future__ import annotations

import gc
import multiprocessing
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from common_ground import KEPT, leave_together, write_results
from torch import distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn.parallel import DistributedDataParallel

from headrace import StructuredDataset, merge_states


def make_loader(data: Path, **options: Any) -> Any:
    options = {"batch_size": 32, "shuffle": True, "split_rows": 50, "mix": 2, **options}
    return StructuredDataset.create_dataloader(data, **options)[0]


def train(batches: Iterable[Any]) -> list[list[int]]:
    """Return the ids of every batch; each step is a backward pass in which all ranks take part."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch_ids = []
    for batch in batches:
        model(batch["x"][:, None]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        batch_ids.append(batch["id"].tolist())
    dist.barrier()  # a rank with one step more would hang here
    return batch_ids


def two_epochs(data: Path, **options: Any) -> dict[str, Any]:
    loader = make_loader(data, **options)
    epochs = [train(loader), train(loader)]
    return {"epochs": epochs, "padded": loader.stats()["padded"]}


def checkpoints(data: Path, folder: Path, **options: Any) -> dict[str, Any]:
    """Return the rest of an epoch after checkpoints with keys for each rank, and merged ones.

    They are saved before the epoch, in its middle, after its last batch, and in the middle of the
    next epoch.
    """
    rank = dist.get_rank()
    undisturbed = make_loader(data, **options)
    epochs = [ids(undisturbed) for _ in range(3)]
    whole, per_epoch = [batch for epoch in epochs for batch in epoch], len(epochs[0])
    found: dict[str, Any] = {"whole": whole, "resumed": {}}
    for count in (0, 3, per_epoch, per_epoch + 2):
        loader = make_loader(data, **options)
        take(loader, count)
        own, merged = folder / f"own-{count}", folder / f"merged-{count}"
        dcp.save({f"loader-{rank}": loader}, checkpoint_id=own)
        save_merged(loader, merged)
        from_own = make_loader(data, **options)
        dcp.load({f"loader-{rank}": from_own}, checkpoint_id=own)
        found["resumed"][f"own {count}"] = [count, ids(from_own)]
        from_merged = make_loader(data, **options)
        load_merged(from_merged, merged)
        found["resumed"][f"merged {count}"] = [count, ids(from_merged)]
    found["stateful"] = isinstance(loader, Stateful)
    return found


def resized(data: Path, folder: Path) -> dict[str, Any]:
    """Return the batches of two ranks, and the rest as each reads it alone from a checkpoint."""
    loader = make_loader(data)
    batches = take(loader, 3)
    save_merged(loader, folder)
    alone = make_loader(data, rank=0, world_size=1)
    load_merged(alone, folder)
    return {"taken": batches, "rest": ids(alone)}


def fork_beside_garbage(data: Path) -> int | None:
    """Return the exit code of a child that collects a loader whose ranks agreed in the parent."""
    gc.disable()
    loader = make_loader(data, filters=KEPT)
    take(loader, 1)
    cycle = [loader]
    cycle.append(cycle)
    del loader, cycle
    child = multiprocessing.get_context("fork").Process(target=gc.collect)
    child.start()
    child.join(120)
    exit_code = child.exitcode
    child.kill()
    gc.enable()
    return exit_code


def ids(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def save_merged(loader: Any, folder: Path) -> None:
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, loader.state_dict())
    dcp.save({"loader": merge_states(states)}, checkpoint_id=folder)


def load_merged(loader: Any, folder: Path) -> None:
    saved = {"loader": loader.state_dict()}
    dcp.load(saved, checkpoint_id=folder)
    loader.load_state_dict(saved["loader"])


def take(loader: Any, count: int) -> list[list[int]]:
    """Return the next ``count`` batches, across the ends of epochs."""
    batch_ids: list[list[int]] = []
    while len(batch_ids) < count:
        for batch in loader:
            batch_ids.append(batch["id"].tolist())
            if len(batch_ids) == count:
                break
    return batch_ids


def main(data: Path, folder: Path) -> None:
    dist.init_process_group("gloo")
    results: dict[str, Any] = {}
    for even in ("drop", "pad"):
        results[f"counted, {even}"] = two_epochs(data, even=even)
        results[f"filtered, {even}"] = two_epochs(data, even=even, filters=KEPT)
    results["filtered, workers"] = two_epochs(data, filters=KEPT, num_workers=1)
    results["checkpoints"] = checkpoints(data, folder)
    results["filtered checkpoints"] = checkpoints(data, folder / "filtered", filters=KEPT)
    results["resized"] = resized(data, folder / "resized")
    results["exit code of a fork"] = fork_beside_garbage(data)
    write_results(folder, results)
    leave_together()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
