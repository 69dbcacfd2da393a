"""Ray Train: workers that Ray starts, and starts again when one is lost, each with its own rows.

    python examples/ray_train.py folder-of-parquet-files checkpoints

When a worker dies, Ray restarts all of them from the last checkpoint that was reported. Every
worker puts the state of its loader there; ``merge_states`` makes one of them, so that the number of
workers may change. Run the script again to go on after the whole job was lost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray.train
import ray.train.torch
import torch

from headrace import StructuredDataset, merge_states

SAVE_EVERY = 5


def save(step: int, model: Any, optimizer: Any, loader: Any) -> None:
    """Report a checkpoint: rank 0 adds the model, every rank the state of its loader."""
    rank = ray.train.get_context().get_world_rank()
    with TemporaryDirectory() as folder:
        (Path(folder) / f"loader-{rank}.json").write_text(json.dumps(loader.state_dict()))
        if rank == 0:
            saved = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(saved, Path(folder) / "model.pt")
        ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def load(checkpoint: ray.train.Checkpoint | None, model: Any, optimizer: Any, loader: Any) -> int:
    """Go back to a checkpoint, if there is one; the steps that lie behind."""
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        saved = torch.load(Path(folder) / "model.pt", weights_only=True)
        states = [json.loads(file.read_text()) for file in Path(folder).glob("loader-*.json")]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(merge_states(states))
    return int(saved["step"])


def train_worker(config: dict[str, Any]) -> None:
    """What each worker runs; the loader knows its rank from torch.distributed, which Ray set up."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader, dataset = StructuredDataset.create_dataloader(
        config["data"], batch_size=32, shuffle=True, split_rows=100, mix=2
    )
    step = load(ray.train.get_checkpoint(), model, optimizer, loader)
    device = ray.train.torch.get_device()
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
                save(step, model, optimizer, loader)


def train(
    data: Path,
    checkpoints: Path,
    *,
    epochs: int = 1,
    on_step: Callable[[int, dict[str, Any], float], None],
) -> None:
    """Train with two workers to the end of the last epoch, from the last checkpoint on."""
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
    """Print how it goes, on one worker."""
    if ray.train.get_context().get_world_rank() == 0:
        print(f"step {step}: {len(batch['y'])} rows on this rank, loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), on_step=show)
