"""DeepSpeed ZeRO: the optimizer in shards, different rows for every rank, exact resume.

    deepspeed examples/deepspeed_zero.py folder-of-parquet-files checkpoints
    torchrun --nproc-per-node 2 examples/deepspeed_zero.py folder-of-parquet-files checkpoints

Run it again after a crash: it continues from the last checkpoint. Make the loader yourself, instead
of passing ``training_data`` to ``deepspeed.initialize``. Its state is saved as ``client_state``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import distributed as dist

from headrace import StructuredDataset
from headrace.integrations.ranks import gather_state

SAVE_EVERY = 5
CONFIG = {
    "train_micro_batch_size_per_gpu": 32,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
}


def save(engine: Any, loader: Any, checkpoints: Path) -> None:
    """Write a checkpoint that a job of any size can load."""
    engine.save_checkpoint(str(checkpoints), client_state={"loader": gather_state(loader)})


def train(
    data: Path,
    checkpoints: Path,
    *,
    epochs: int = 1,
    on_step: Callable[[int, dict[str, Any], float], None],
) -> None:
    """Train to the end of the last epoch, from the last checkpoint on."""
    deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo")
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=CONFIG
    )
    loader, dataset = StructuredDataset.create_dataloader(
        data,
        batch_size=engine.train_micro_batch_size_per_gpu(),
        shuffle=True,
        split_rows=100,
        mix=2,
    )
    _, client_state = engine.load_checkpoint(str(checkpoints))
    if client_state is not None:
        loader.load_state_dict(client_state["loader"])
    while dataset.epoch < epochs:
        for batch in loader:
            x, y = batch["x"].to(engine.device), batch["y"].to(engine.device)
            loss = torch.nn.functional.mse_loss(engine(x).squeeze(1), y)
            engine.backward(loss)
            engine.step()
            on_step(engine.global_steps, batch, loss.item())
            if engine.global_steps % SAVE_EVERY == 0:
                save(engine, loader, checkpoints)
    dist.barrier()  # gloo must be idle when Python ends
    dist.destroy_process_group()


def show(step: int, batch: dict[str, Any], loss: float) -> None:
    """Print the loss, on one rank."""
    if dist.get_rank() == 0:
        print(f"step {step}: {len(batch['y'])} rows on this rank, loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("--local_rank", help="given by the deepspeed launcher; not needed")
    options = parser.parse_args()
    train(options.data, options.checkpoints, on_step=show)
