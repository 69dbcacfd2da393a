"""DDP under MPI, SLURM or any other launcher: the loader finds its rank in the environment.

    mpirun -n 2 python examples/launchers.py folder-of-parquet-files checkpoints

The other command lines are in launchers.md. The loader is made before torch.distributed is
initialised, which then gets its rank from the loader. ``MASTER_ADDR`` and ``MASTER_PORT`` are the
address of rank 0, as for torchrun; without them it is this machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from headrace import StructuredDataset
from headrace.integrations.ranks import gather_state

SAVE_EVERY = 5


def save(file: Path, step: int, model: Any, optimizer: Any, loader: Any) -> None:
    """Write a checkpoint that a job of any size can load."""
    state = gather_state(loader)  # on every rank
    if dist.get_rank() == 0:
        saved = {
            "step": step,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": state,
        }
        torch.save(saved, file.with_suffix(".new"))
        file.with_suffix(".new").replace(file)
    dist.barrier()


def load(file: Path, model: Any, optimizer: Any, loader: Any, device: torch.device) -> int:
    """Load the last checkpoint, if there is one, and return its number of steps."""
    if not file.exists():
        return 0
    saved = torch.load(file, weights_only=True, map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])
    return int(saved["step"])


def train(
    data: Path,
    checkpoints: Path,
    *,
    epochs: int = 1,
    on_step: Callable[[int, dict[str, Any], float], None],
) -> None:
    """Train to the end of the last epoch, from the last checkpoint on."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    loader, dataset = StructuredDataset.create_dataloader(
        data, batch_size=32, shuffle=True, split_rows=100, mix=2
    )
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = os.environ.get("MASTER_PORT", "29500")
    gpu = torch.cuda.is_available()
    local_rank = dataset.ranks.rank % max(1, torch.cuda.device_count())
    device = torch.device("cuda", local_rank) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if gpu else "gloo",
        init_method=f"tcp://{address}:{port}",
        rank=dataset.ranks.rank,
        world_size=dataset.ranks.size,
    )
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    model = DistributedDataParallel(model.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = load(checkpoints / "last.pt", model, optimizer, loader, device)
    while dataset.epoch < epochs:
        for batch in loader:
            x, y = batch["x"].to(device), batch["y"].to(device)
            loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            on_step(step, batch, loss.item())
            if step % SAVE_EVERY == 0:
                save(checkpoints / "last.pt", step, model, optimizer, loader)
    del model  # it may hang when it is freed after its process group was destroyed
    dist.barrier()  # gloo must be idle when Python ends
    dist.destroy_process_group()


def show(step: int, batch: dict[str, Any], loss: float) -> None:
    """Print the loss, on one rank."""
    if dist.get_rank() == 0:
        print(f"step {step}: {len(batch['y'])} rows on this rank, loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), on_step=show)
