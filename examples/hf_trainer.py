"""Hugging Face Trainer: the loader in place of its own, and its state in every checkpoint.

    torchrun --nproc-per-node 2 examples/hf_trainer.py folder-of-parquet-files checkpoints

Run it again after a crash: it goes on from the last checkpoint. Three things matter:

* ``get_train_dataloader`` returns the loader as it is, without ``accelerator.prepare``;
* ``ignore_data_skip=True``: the loader goes on by itself, so the Trainer must not skip as well;
* a callback that is an ``ExportableState`` puts the loader's state into ``trainer_state.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint

from headrace import StructuredDataset

SAVE_EVERY = 5


class LoaderState(TrainerCallback, ExportableState):
    """Saves where the loader is with the Trainer's own state, and goes back there.

    Rank 0 writes that file; as all ranks take the same number of steps, its state is enough for
    all. The Trainer makes the callback anew from what ``state`` returned.
    """

    def __init__(self, saved: dict[str, Any] | None = None) -> None:
        self.saved = saved
        self.loader: Any = None

    def on_train_begin(self, args, state, control, train_dataloader=None, **kwargs):
        if len(train_dataloader) % args.gradient_accumulation_steps:
            # Beside ignore_data_skip the Trainer does not see the end of a resumed epoch.
            raise ValueError("gradient_accumulation_steps must divide the batches of an epoch")
        self.loader = train_dataloader
        if self.saved is not None:
            self.loader.load_state_dict(self.saved)

    def state(self) -> dict[str, Any]:
        if self.loader is not None:
            self.saved = self.loader.state_dict()
        return {"args": {"saved": self.saved}, "attributes": {}}


class TabularTrainer(Trainer):
    """A Trainer over tabular files."""

    def __init__(self, data: Path, *, on_step: Callable[..., None], **options: Any) -> None:
        super().__init__(**options, callbacks=[LoaderState()])
        self.data, self.on_step = data, on_step

    def get_train_dataloader(self):
        loader, _ = StructuredDataset.create_dataloader(
            self.data,
            batch_size=self.args.per_device_train_batch_size,
            shuffle=True,
            split_rows=100,
            mix=2,
            accelerator=self.accelerator,
        )
        return loader

    def num_examples(self, dataloader) -> int:
        return dataloader.dataset.num_rows

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
    options = TrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=epochs,
        per_device_train_batch_size=32,
        save_steps=SAVE_EVERY,
        ignore_data_skip=True,
        restore_callback_states_from_checkpoint=True,
        learning_rate=1e-2,
        use_cpu=True,
        ddp_backend="gloo",
        report_to="none",
        disable_tqdm=True,
    )
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    trainer = TabularTrainer(data, model=model, args=options, on_step=on_step)
    last = get_last_checkpoint(str(checkpoints)) if checkpoints.exists() else None
    trainer.train(resume_from_checkpoint=last)
    dist.barrier()  # gloo must not be at work when Python ends
    dist.destroy_process_group()


def show(step: int, batch: dict[str, Any], loss: float) -> None:
    """Print how it goes, on one rank."""
    if dist.get_rank() == 0:
        print(f"step {step}: {len(batch['y'])} rows on this rank, loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), on_step=show)
