"""A model that records which rows it was trained with."""

from __future__ import annotations

from typing import Any

import lightning
import torch

__all__ = ["RecordingModel"]


class RecordingModel(lightning.LightningModule):
    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
        self.rows: list[list[int]] = [[] for _ in range(epochs)]

    def training_step(self, batch: Any, number: int) -> Any:
        self.rows[self.current_epoch] += batch["id"].tolist()
        return (self.weight * batch["x"]).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)
