"""Fits of Lightning resumed from checkpoints, compared with a fit that was not stopped."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from common_ground import KEPT, leave_together, write_results
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader

from headrace import StructuredDataset
from headrace.integrations.lightning import HeadraceCallback

EPOCHS = 3


class Recorder(pl.LightningModule):
    """A linear model that records the ids of every batch, and Lightning's epoch at that time."""

    def __init__(self, data: Path, *, beside: bool = False, **options: Any) -> None:
        super().__init__()
        self.beside = beside
        self.model = torch.nn.Linear(1, 1)
        self.data = data
        self.options = options
        self.seen: list[list[Any]] = []
        self.validated: list[list[int]] = []

    def train_dataloader(self) -> Any:
        loader, _ = StructuredDataset.create_dataloader(
            self.data, shuffle=True, split_rows=50, mix=2, batch_size=32, **self.options
        )
        if not self.beside:
            return loader
        other, _ = StructuredDataset.create_dataloader(self.data, shuffle=True, batch_size=16)
        return CombinedLoader({"these": loader, "those": other}, "min_size")

    def val_dataloader(self) -> Any:
        loader, _ = StructuredDataset.create_dataloader(self.data, batch_size=200, even="pad")
        return loader

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        batches = list(batch.values()) if self.beside else [batch]
        ids = [row for one in batches for row in one["id"].tolist()]
        batch = batches[0]
        self.seen.append([self.current_epoch, batch_idx, ids])
        return self.model(batch["x"][:, None]).square().mean()

    def on_validation_epoch_start(self) -> None:
        self.validated.append([])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated[-1] += batch["id"].tolist()

    def predict_dataloader(self) -> Any:
        return self.val_dataloader()

    def predict_step(self, batch: Any, batch_idx: int) -> list[int]:
        return batch["id"].tolist()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(
    data: Path, folder: Path, *, resume: str | None = None, trainer: dict[str, Any], **options: Any
) -> Recorder:
    """Train to the end, with checkpoints after all batches and at ends of epochs or validations."""
    every_step = ModelCheckpoint(
        folder, "step-{step}", every_n_train_steps=1, save_top_k=-1, auto_insert_metric_name=False
    )
    validates = "val_check_interval" in trainer
    in_between = ModelCheckpoint(
        folder,
        "validated-{step}" if validates else "epoch-{epoch}",
        save_top_k=-1,
        save_on_train_epoch_end=not validates,
        auto_insert_metric_name=False,
    )
    checkpoints = [] if resume else [every_step, in_between]
    module = Recorder(data, **options)
    runner = pl.Trainer(
        **{"max_epochs": EPOCHS, **trainer},
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=resume is None,
        default_root_dir=folder,
        callbacks=[*checkpoints, HeadraceCallback()],
    )
    runner.fit(module, ckpt_path=None if resume is None else folder / f"{resume}.ckpt")
    return module


def compare(
    data: Path, folder: Path, *, few: bool = False, trainer: dict[str, Any], **options: Any
) -> dict[str, Any]:
    """Return the rows of a whole run, and of runs resumed from some of its checkpoints."""
    whole = fit(data, folder, trainer=trainer, **options)
    epochs = [epoch for epoch, _, _ in whole.seen]
    first = epochs.count(0)
    second = first + epochs.count(1)
    names = {"epoch-0": first, f"step-{first - 1}": first - 1, f"step-{second - 2}": second - 2}
    if not few:
        names |= {f"step-{step}": step for step in (1, first // 2, first, first + 1, second)}
        names |= {"epoch-1": second}
    if "val_check_interval" in trainer:
        every = trainer["val_check_interval"]
        names |= {f"validated-{step}": step for step in range(every, first + 1, every)}
        del names["epoch-0"]
    resumed = {
        name: [step, fit(data, folder, resume=name, trainer=trainer, **options).seen]
        for name, step in names.items()
    }
    return {"whole": whole.seen, "validated": whole.validated, "resumed": resumed}


def stopped(data: Path, folder: Path) -> dict[str, Any]:
    """Run until ``max_steps`` ends the run in mid-epoch, and resume it with more steps."""
    few: dict[str, Any] = {"devices": 1, "max_epochs": -1, "max_steps": 40}
    many = {**few, "max_steps": 60}
    whole = fit(data, folder / "whole", trainer=many)
    fit(data, folder, trainer=few)
    resumed = {
        name: [40, fit(data, folder, resume=name, trainer=many).seen]
        for name in ("epoch-1", "step-40")
    }
    return {"whole": whole.seen, "resumed": resumed}


def predictions(data: Path) -> list[list[int]]:
    """Return the batches that Lightning predicts, of loaders made by its hook and by the user."""
    module = Recorder(data)
    runner = pl.Trainer(devices=1, accelerator="cpu", logger=False, enable_progress_bar=False)
    by_hand, _ = StructuredDataset.create_dataloader(data, batch_size=200)
    return [*runner.predict(module), *runner.predict(module, by_hand)]


ALONE: dict[str, dict[str, Any]] = {
    "counted": {},
    "filtered": {"filters": KEPT},
    "adaptive": {"num_workers": 2, "balance": "adaptive"},
    "by steps": {"trainer": {"max_steps": 80, "max_epochs": -1}, "few": True},
    "limited": {"trainer": {"limit_train_batches": 6}, "few": True},
    "limited, filtered": {"trainer": {"limit_train_batches": 6}, "filters": KEPT, "few": True},
    "reloaded": {"trainer": {"reload_dataloaders_every_n_epochs": 1}, "few": True},
    "validated": {"trainer": {"val_check_interval": 11}, "few": True},
    "two loaders": {"beside": True, "filters": KEPT, "few": True},
}
TOGETHER: dict[str, dict[str, Any]] = {
    "counted": {"few": True},
    "filtered": {"filters": KEPT},
    "pad": {"filters": KEPT, "even": "pad", "few": True},
    "workers": {"filters": KEPT, "num_workers": 1, "few": True},
}


def main(data: Path, folder: Path, ranks: int) -> None:
    warnings.simplefilter("ignore")
    trainer: dict[str, Any] = {"devices": ranks, "num_sanity_val_steps": 2}
    if ranks > 1:
        trainer["strategy"] = "ddp"
    results: dict[str, Any] = {}
    if ranks == 1:
        results |= {"predicted": predictions(data), "stopped": stopped(data, folder / "stopped")}
    for name, options in (ALONE if ranks == 1 else TOGETHER).items():
        settings = {**trainer, **options.pop("trainer", {})}
        results[name] = compare(data, folder / name, trainer=settings, **options)
    write_results(folder, results)
    leave_together()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
