"""One of two ranks, which runs Lightning and Accelerate over samplers with and without ranks."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning
import pyarrow as pa
import torch
from accelerate import Accelerator
from recording_model import RecordingModel
from torch.utils.data import DataLoader

from headrace.access import ArrowBackend, GlobalShuffleSampler, RowDataset, ShardShuffleSampler
from headrace.errors import OptionError

ROWS, EPOCHS = 60, 2

rows = RowDataset(ArrowBackend(table=pa.table({"id": range(ROWS), "x": [1.0] * ROWS})))


def samplers(rank: int) -> dict[str, Any]:
    return {
        "plain": GlobalShuffleSampler(ROWS, 3),
        "global of a rank": GlobalShuffleSampler(ROWS, 3, rank, 2),
        "shards of a rank": ShardShuffleSampler([40, 20], 3, rank, 2),
    }


def under_accelerate(sampler: Any) -> list[list[int]] | str:
    try:
        prepared = Accelerator(cpu=True).prepare(DataLoader(rows, batch_size=5, sampler=sampler))
    except OptionError as error:
        return str(error)
    return [[row for batch in prepared for row in batch["id"].tolist()] for _ in range(EPOCHS)]


def under_lightning(sampler: Any) -> list[list[int]]:
    model = RecordingModel(EPOCHS)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(rows, batch_size=5, sampler=sampler))
    return model.rows


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    rank = int(os.environ["RANK"])
    result = {
        "accelerate": {name: under_accelerate(made) for name, made in samplers(rank).items()},
        "lightning": {name: under_lightning(made) for name, made in samplers(rank).items()},
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(result))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
