"""DistributedDataParallel: rows of their own for every rank, and a checkpoint that fits any job.

    torchrun --nproc-per-node 2 examples/ddp.py folder-of-parquet-files checkpoints

Run it again after a crash, with as many ranks or with more or fewer: it goes on from the last
checkpoint, and no row of the epoch is lost or comes twice. All ranks take the same number of steps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from headrace import StructuredDataset, merge_states

SAVE_EVERY = 5


def save(file: Path, model: torch.nn.Module, loader: Any) -> None:
    """The model, and the states of all ranks' loaders as one."""
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, loader.state_dict())
    if dist.get_rank() == 0:
        new = file.with_suffix(".new")
        torch.save({"model": model.state_dict(), "loader": merge_states(states)}, new)
        new.rename(file)


def main(data: Path, checkpoints: Path, epochs: int = 1) -> None:
    """Train to the end of the last epoch, from the last checkpoint on."""
    dist.init_process_group("gloo")
    loader, _ = StructuredDataset.create_dataloader(
        data, batch_size=32, shuffle=True, split_rows=100, mix=2
    )
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    checkpoints.mkdir(parents=True, exist_ok=True)
    last = checkpoints / "last.pt"
    if last.exists():
        saved = torch.load(last, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
    step = 0
    while loader.dataset.epoch < epochs:
        for batch in loader:
            loss = torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % SAVE_EVERY == 0:
                save(last, model, loader)
    print(f"rank {os.environ['RANK']}: {step} steps, loss {loss.item():.4f}", flush=True)
    dist.barrier()  # gloo aborts a process whose peer has gone before
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
