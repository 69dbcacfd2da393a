"""Lightning: a loader made in ``train_dataloader``, and a callback for exact checkpoints.

    torchrun --nproc-per-node 2 examples/lightning_module.py folder-of-parquet-files checkpoints

Lightning calls ``train_dataloader`` when it has its process group, so that the loader knows its
rank. The callback saves the state of the loaders of all ranks in every checkpoint, beside model and
optimizer. Run it again after a crash: it continues from the last one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from headrace import StructuredDataset
from headrace.integrations.lightning import HeadraceCallback


class Regression(pl.LightningModule):
    """A linear model of four features."""

    def __init__(self, data: Path) -> None:
        super().__init__()
        self.model = torch.nn.Linear(4, 1)
        self.data = data

    def train_dataloader(self) -> Any:
        loader, _ = StructuredDataset.create_dataloader(
            self.data, batch_size=32, shuffle=True, split_rows=100, mix=2
        )
        return loader

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.model(batch["x"]).squeeze(1), batch["y"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main(data: Path, checkpoints: Path, epochs: int = 1) -> None:
    """Train to the end of the last epoch, from the last checkpoint on."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        logger=False,
        enable_progress_bar=False,
        callbacks=[
            HeadraceCallback(),
            ModelCheckpoint(checkpoints, every_n_train_steps=5, save_last=True),
        ],
    )
    last = checkpoints / "last.ckpt"
    trainer.fit(Regression(data), ckpt_path=last if last.exists() else None)
    print(f"rank {trainer.global_rank}: {trainer.global_step} steps", flush=True)
    trainer.strategy.barrier()  # gloo aborts a process whose peer has already ended


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
