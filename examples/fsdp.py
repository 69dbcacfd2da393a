"""FSDP2: every rank has a shard of the model and reads different rows; resume is exact.

    torchrun --nproc-per-node 2 examples/fsdp.py folder-of-parquet-files checkpoints

Run it again after a crash, with the same number of ranks or another: it continues from the last
checkpoint. ``gather_state`` merges the states of all loaders into one, which a job of any size can
load.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from headrace import StructuredDataset
from headrace.integrations.ranks import gather_state

SAVE_EVERY = 5


class Job:
    """The parts of a checkpoint: the model, the optimizer and the loader."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Any):
        self.model, self.optimizer, self.loader = model, optimizer, loader

    def save(self, folder: Path, step: int) -> None:
        """Write a checkpoint, and record it as the last one when it is complete."""
        state = gather_state(self.loader)
        model, optimizer = get_state_dict(self.model, self.optimizer)
        parts = {"model": model, "optimizer": optimizer}
        checkpoint.save(parts, checkpoint_id=folder / f"step-{step}")
        if dist.get_rank() == 0:
            torch.save({"step": step, "loader": state}, folder / "new")
            (folder / "new").rename(folder / "last.pt")
        dist.barrier()

    def load(self, folder: Path) -> int:
        """Load the last checkpoint, if there is one, and return its number of steps."""
        if not (folder / "last.pt").exists():
            return 0
        last = torch.load(folder / "last.pt", weights_only=True)
        model, optimizer = get_state_dict(self.model, self.optimizer)
        parts = {"model": model, "optimizer": optimizer}
        checkpoint.load(parts, checkpoint_id=folder / f"step-{last['step']}")
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=parts["model"],
            optim_state_dict=parts["optimizer"],
        )
        self.loader.load_state_dict(last["loader"])
        return int(last["step"])


def train(
    data: Path,
    checkpoints: Path,
    *,
    epochs: int = 1,
    on_step: Callable[[int, dict[str, Any], float], None],
) -> None:
    """Train to the end of the last epoch, from the last checkpoint on."""
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    checkpoints.mkdir(parents=True, exist_ok=True)

    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    model.to(device)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader, _ = StructuredDataset.create_dataloader(
        data, batch_size=32, shuffle=True, split_rows=100, mix=2, device_mesh=mesh
    )
    job = Job(model, optimizer, loader)
    step = job.load(checkpoints)
    while loader.dataset.epoch < epochs:
        for batch in loader:
            x, y = batch["x"].to(device), batch["y"].to(device)
            loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            on_step(step, batch, loss.item())
            if step % SAVE_EVERY == 0:
                job.save(checkpoints, step)
    dist.barrier()  # gloo must be idle when Python ends
    dist.destroy_process_group()


def show(step: int, batch: dict[str, Any], loss: float) -> None:
    """Print the loss, on one rank."""
    if dist.get_rank() == 0:
        print(f"step {step}: {len(batch['y'])} rows on this rank, loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), on_step=show)
