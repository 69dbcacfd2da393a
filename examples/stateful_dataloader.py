"""torchdata's StatefulDataLoader over a dataset: its workers, its state, exact resume.

    torchrun --nproc-per-node 2 examples/stateful_dataloader.py folder-of-parquet-files checkpoints

A dataset of your own loader takes ranks only when told, and its workers read the epoch that
``set_epoch`` chose. The state belongs to this number of ranks and workers; the loader of
``create_dataloader`` has one that fits any.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from headrace import StructuredDataset

SAVE_EVERY = 5


def main(data: Path, checkpoints: Path, epochs: int = 1) -> None:
    """Read to the end of the last epoch, from the last checkpoint of this rank on."""
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    dataset = StructuredDataset(
        data, batch_size=32, shuffle=True, split_rows=100, mix=2, rank=rank, world_size=ranks
    )
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=1, collate_fn=dataset.collate)
    checkpoints.mkdir(parents=True, exist_ok=True)
    last = checkpoints / f"rank-{rank}.pt"
    epoch = 0
    if last.exists():
        saved = torch.load(last, weights_only=False)
        epoch = saved["epoch"]
        loader.load_state_dict(saved["loader"])
    step = 0
    for current in range(epoch, epochs):
        dataset.set_epoch(current)
        for _batch in loader:
            step += 1
            if step % SAVE_EVERY == 0:
                new = last.with_suffix(".new")
                torch.save({"epoch": current, "loader": loader.state_dict()}, new)
                new.rename(last)
    print(f"rank {rank}: {step} steps", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
