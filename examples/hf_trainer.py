"""Hugging Face Trainer: this library's loader instead of its own, with its state in checkpoints.

    torchrun --nproc-per-node 2 examples/hf_trainer.py folder-of-parquet-files checkpoints

``HeadraceTrainer`` takes a function that makes the loader, and saves the state of the loader beside
model and optimizer. Run it again after a crash: it continues from the last checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from headrace import StructuredDataset
from headrace.integrations.trainer import HeadraceTrainer

SAVE_EVERY = 5


class RegressionTrainer(HeadraceTrainer):
    """A Trainer with its own loss, which calls ``on_step`` after each step."""

    def __init__(self, *, on_step: Callable[..., None], **options: Any) -> None:
        super().__init__(**options)
        self.on_step = on_step

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(inputs["x"]).squeeze(1)
        loss = torch.nn.functional.mse_loss(outputs, inputs["y"])
        if model.training:
            self.on_step(self.state.global_step + 1, inputs, loss.item())
        return (loss, outputs) if return_outputs else loss


def train(
    data: Path,
    checkpoints: Path,
    *,
    epochs: int = 1,
    on_step: Callable[[int, dict[str, Any], float], None],
) -> None:
    """Train to the end of the last epoch, from the last checkpoint on."""

    def make_loader(accelerator: Any, batch_size: int) -> Any:
        loader, _ = StructuredDataset.create_dataloader(
            data,
            batch_size=batch_size,
            shuffle=True,
            split_rows=100,
            mix=2,
            accelerator=accelerator,
        )
        return loader

    gpu = torch.cuda.is_available()
    options = TrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=epochs,
        per_device_train_batch_size=32,
        save_steps=SAVE_EVERY,
        learning_rate=1e-2,
        use_cpu=not gpu,
        ddp_backend="nccl" if gpu else "gloo",
        report_to="none",
        disable_tqdm=True,
    )
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    trainer = RegressionTrainer(model=model, args=options, make_loader=make_loader, on_step=on_step)
    last = get_last_checkpoint(str(checkpoints)) if checkpoints.exists() else None
    trainer.train(resume_from_checkpoint=last)
    dist.barrier()  # gloo must be idle when Python ends
    dist.destroy_process_group()


def show(step: int, batch: dict[str, Any], loss: float) -> None:
    """Print the loss, on one rank."""
    if dist.get_rank() == 0:
        print(f"step {step}: {len(batch['y'])} rows on this rank, loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), on_step=show)
