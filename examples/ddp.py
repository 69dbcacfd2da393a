"""DistributedDataParallel: every rank reads different rows, and a checkpoint fits any job.

    torchrun --nproc-per-node 2 examples/ddp.py folder-of-parquet-files checkpoints

Run it again after a crash, with the same number of ranks or another: it continues from the last
checkpoint, and no row of the epoch is lost or repeated. All ranks take the same number of steps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from headrace import StructuredDataset
from headrace.integrations.ranks import gather_state

SAVE_EVERY = 5


def save(file: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    """Save the model, the optimizer, and one state for the loaders of all ranks."""
    state = gather_state(loader)  # on every rank
    if dist.get_rank() == 0:
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": state}
        torch.save(parts, file.with_suffix(".new"))
        file.with_suffix(".new").rename(file)


def train(data: Path, checkpoints: Path, epochs: int = 1) -> None:
    """Train to the end of the last epoch, from the last checkpoint on."""
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    loader, dataset = StructuredDataset.create_dataloader(
        data, batch_size=32, shuffle=True, split_rows=100, mix=2, pin_memory=gpu
    )
    model = DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    checkpoints.mkdir(parents=True, exist_ok=True)
    last = checkpoints / "last.pt"
    if last.exists():
        saved = torch.load(last, weights_only=True, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    step = 0
    while dataset.epoch < epochs:
        for batch in loader:
            x, y = (batch[name].to(device, non_blocking=True) for name in ("x", "y"))
            loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % SAVE_EVERY == 0:
                save(last, model, optimizer, loader)
    print(f"rank {os.environ['RANK']}: {step} steps, loss {loss.item():.4f}", flush=True)


def main(data: Path, checkpoints: Path) -> None:
    """Train, and let all ranks leave together."""
    train(data, checkpoints)  # frees the model, which may hang once its process group is destroyed
    dist.barrier()  # gloo aborts a process whose peer has already ended
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
