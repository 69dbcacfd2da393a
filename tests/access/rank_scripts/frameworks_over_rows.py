"""The order of a sampler under Accelerate and under Lightning, printed as JSON."""

from __future__ import annotations

import json
import warnings
from typing import Any

import lightning
import pyarrow as pa
from accelerate import Accelerator
from recording_model import RecordingModel
from torch.utils.data import DataLoader

from headrace.access import ArrowBackend, GlobalShuffleSampler, RowDataset

ROWS, SEED, EPOCHS, SKIPPED = 100, 3, 3, 32

rows = RowDataset(ArrowBackend(table=pa.table({"id": range(ROWS), "x": [1.0] * ROWS})))


def loader() -> Any:
    return DataLoader(rows, batch_size=16, sampler=GlobalShuffleSampler(ROWS, SEED))


def ids(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch["id"].tolist()]


def under_accelerate() -> dict[str, Any]:
    prepared = Accelerator(cpu=True).prepare(loader())
    epochs = [ids(prepared) for _ in range(EPOCHS)]
    prepared.set_epoch(0)
    prepared.iteration = 0
    prepared.batch_sampler.sampler.seek(SKIPPED, epoch=0)
    return {"epochs": epochs, "rest": ids(prepared)}


def under_lightning() -> list[list[int]]:
    model = RecordingModel(EPOCHS)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader())
    return model.rows


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps({"accelerate": under_accelerate(), "lightning": under_lightning()}))
