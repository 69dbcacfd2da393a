"""Ray Train: workers that Ray starts, and restarts when one is lost, each with its own rows.

    python examples/ray_train.py folder-of-parquet-files checkpoints

When a worker dies, Ray restarts all of them from the last checkpoint that was reported. ``report``
adds the states of all loaders to it, beside model and optimizer; ``restore`` loads them, for any
number of workers. Run the script again to continue after the whole job was lost.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch

from headrace import StructuredDataset
from headrace.integrations.ray import report, restore

SAVE_EVERY = 5


def train_worker(config: dict[str, Any]) -> None:
    """Train in one worker; the loader finds its rank in torch.distributed, which Ray has set up."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader, dataset = StructuredDataset.create_dataloader(
        config["data"], batch_size=32, shuffle=True, split_rows=100, mix=2
    )
    device = ray.train.torch.get_device()
    step = 0
    saved = restore(loader, map_location=device)
    if saved is not None:
        step = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    while dataset.epoch < config["epochs"]:
        for batch in loader:
            outputs = model(batch["x"].to(device)).squeeze(1)
            loss = torch.nn.functional.mse_loss(outputs, batch["y"].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            config["on_step"](step, batch, loss.item())
            if step % SAVE_EVERY == 0:
                parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                report({"step": step}, loader, {"step": step, **parts})


def train(
    data: Path,
    checkpoints: Path,
    *,
    epochs: int = 1,
    on_step: Callable[[int, dict[str, Any], float], None],
) -> None:
    """Train with two workers to the end of the last epoch, from the last checkpoint on."""
    if not ray.is_initialized():
        # Without an address Ray would join a cluster that an earlier job left on this machine.
        ray.init(address=os.environ.get("RAY_ADDRESS", "local"))
    gpu = torch.cuda.is_available()
    trainer = ray.train.torch.TorchTrainer(
        train_worker,
        train_loop_config={"data": str(data), "epochs": epochs, "on_step": on_step},
        scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=gpu),
        torch_config=ray.train.torch.TorchConfig(backend="nccl" if gpu else "gloo"),
        run_config=ray.train.RunConfig(
            name="run",
            storage_path=str(checkpoints.resolve()),
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    )
    trainer.fit()


def show(step: int, batch: dict[str, Any], loss: float) -> None:
    """Print the loss, in one worker."""
    if ray.train.get_context().get_world_rank() == 0:
        print(f"step {step}: {len(batch['y'])} rows on this rank, loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), on_step=show)
