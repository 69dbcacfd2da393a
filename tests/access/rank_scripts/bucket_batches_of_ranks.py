"""One of two ranks that take batches of buckets: in step, under Lightning, under Accelerate."""

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
from accelerate.utils import DataLoaderConfiguration
from torch import distributed
from torch.utils.data import DataLoader

from headrace.access import ArrowBackend, BucketBatchSampler, RowDataset
from headrace.errors import OptionError

BUCKETS = [0] * 40 + [1] * 13 + [2] * 6 + [3]
EPOCHS = 2

table = pa.table({"id": range(len(BUCKETS)), "bucket": BUCKETS, "x": [1.0] * len(BUCKETS)})
rows = RowDataset(ArrowBackend(table=table))


def loader(sampler: BucketBatchSampler) -> Any:
    return DataLoader(rows, batch_sampler=sampler)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
        self.rows: list[list[Any]] = [[] for _ in range(EPOCHS)]

    def train_dataloader(self) -> Any:
        return loader(BucketBatchSampler(BUCKETS, 5))

    def training_step(self, batch: Any, number: int) -> Any:
        self.rows[self.current_epoch].append(batch["id"].tolist())
        return (self.weight * batch["x"]).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def in_step() -> dict[str, Any]:
    """Run a collective at each step: it would hang if another rank had no such step."""
    sampler = BucketBatchSampler(BUCKETS, 5)
    seen: list[list[Any]] = [[], []]
    for epoch in range(EPOCHS):
        for batch in loader(sampler):
            total = torch.ones(1)
            distributed.all_reduce(total)
            assert int(total) == 2
            seen[epoch].append(batch["id"].tolist())
    running = iter(loader(sampler))
    begun = [next(running)["id"].tolist() for _ in range(3)]
    return {"seen": seen, "begun": begun, "state": sampler.state_dict(batches=3)}


def under_lightning() -> list[list[Any]]:
    model = Model()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        use_distributed_sampler=False,  # Lightning cannot divide such batches
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    return model.rows


def under_accelerate(**ranks: int) -> list[list[Any]] | str:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration())
    try:
        prepared = accelerator.prepare(loader(BucketBatchSampler(BUCKETS, 5, **ranks)))
    except OptionError as error:
        return str(error)
    return [[batch["id"].tolist() for batch in prepared] for _ in range(EPOCHS)]


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo")
    seen = {
        "in step": in_step(),
        "lightning": under_lightning(),
        "accelerate": under_accelerate(rank=0, world_size=1),
        "accelerate of ranks": under_accelerate(),
    }
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(seen))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
