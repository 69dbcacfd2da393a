"""One of two ranks that train together over rows, stop in mid-epoch and continue."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from headrace.access import ArrowBackend, GlobalShuffleSampler, RowDataset

BATCH = 16
STEPS_BEFORE_STOP = 5


def trained(model: Any, batches: Any) -> list[int]:
    """Train for some steps, after each of which the ranks wait for each other; return the rows."""
    ids: list[int] = []
    for batch in batches:
        loss = model(batch["vector"]).square().mean()
        loss.backward()
        ids += batch["id"].tolist()
    return ids


def main(folder: Path, rank: int) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=200),
    )
    rows = RowDataset(ArrowBackend(sorted(map(str, folder.glob("*.arrow")))))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))

    def loader(sampler: Any, workers: int = 0) -> Any:
        context = "fork" if workers else None
        return DataLoader(
            rows,
            batch_size=BATCH,
            sampler=sampler,
            num_workers=workers,
            multiprocessing_context=context,
        )

    torchs = DistributedSampler(rows, seed=3)
    torchs.set_epoch(1)
    sampler = GlobalShuffleSampler(len(rows), 7, rank, 2, even="drop")
    begun = trained(model, islice(loader(sampler, workers=1), STEPS_BEFORE_STOP))
    state = sampler.state_dict(samples=STEPS_BEFORE_STOP * BATCH)
    resumed = GlobalShuffleSampler(len(rows), 7, rank, 2, even="drop")
    resumed.load_state_dict(state)
    rest = trained(model, loader(resumed))
    result = {
        "torch": trained(model, loader(torchs)),
        "begun": begun,
        "rest": rest,
        "next": trained(model, loader(resumed)),
        "state": state,
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(result))
    del model  # it may hang when it is freed after its process group was destroyed
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
