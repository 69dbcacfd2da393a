"""One process: train on a folder of Parquet files, on a GPU if there is one.

    python examples/train.py folder-of-parquet-files checkpoints

Model, optimizer and loader are saved together. Run it again after a crash: it continues with the
batch that would have come next.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from headrace import StructuredDataset

SAVE_EVERY = 5


def save(file: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    """Write a new file and rename it, so that a crash leaves the old or the new checkpoint."""
    parts = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),
    }
    torch.save(parts, file.with_suffix(".new"))
    file.with_suffix(".new").rename(file)


def main(data: Path, checkpoints: Path, epochs: int = 1) -> None:
    """Train to the end of the last epoch, from the last checkpoint on."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader, dataset = StructuredDataset.create_dataloader(
        data, batch_size=32, shuffle=True, pin_memory=device == "cuda"
    )
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    checkpoints.mkdir(parents=True, exist_ok=True)
    last = checkpoints / "last.pt"
    if last.exists():
        saved = torch.load(last, weights_only=True, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    step = 0
    while dataset.epoch < epochs:
        for batch in loader:
            x, y = (batch[name].to(device, non_blocking=True) for name in ("x", "y"))
            loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % SAVE_EVERY == 0:
                save(last, model, optimizer, loader)
    print(f"rank 0: {step} steps, loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
