"""torchdata's StatefulDataLoader over a dataset: its workers, its state, exact resume.

    torchrun --nproc-per-node 2 examples/stateful_dataloader.py folder-of-parquet-files checkpoints

A dataset in your own loader needs ``rank=`` and ``world_size=``. Its workers read the epoch that
``set_epoch`` chose. The state belongs to this number of ranks and workers; the state of a loader
from ``create_dataloader`` fits any number.
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
    """Train to the end of the last epoch, from the last checkpoint of this rank on."""
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    dataset = StructuredDataset(
        data, batch_size=32, shuffle=True, split_rows=100, mix=2, rank=rank, world_size=ranks
    )
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=1, collate_fn=dataset.collate)
    model = torch.nn.Linear(4, 1).to(device)  # one for each rank: this example is about the loader
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    checkpoints.mkdir(parents=True, exist_ok=True)
    last = checkpoints / f"rank-{rank}.pt"
    epoch = 0
    if last.exists():
        # The state of StatefulDataLoader contains objects of torchdata.
        saved = torch.load(last, weights_only=False, map_location=device)
        epoch = saved["epoch"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    step = 0
    for current in range(epoch, epochs):
        dataset.set_epoch(current)
        for batch in loader:
            x, y = batch["x"].to(device), batch["y"].to(device)
            loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % SAVE_EVERY == 0:
                parts = {
                    "epoch": current,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                }
                torch.save(parts, last.with_suffix(".new"))
                last.with_suffix(".new").rename(last)
    print(f"rank {rank}: {step} steps", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
