"""One leg of a training that is killed in mid-epoch and started again with other ranks."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from common_ground import KEPT, leave_together
from torch import distributed as dist

from headrace import StructuredDataset, merge_states

KINDS: dict[str, dict[str, Any]] = {
    "counted": {"even": "drop"},
    "filtered": {"even": "pad", "filters": KEPT},
}
SAVED_AT, KILLED_AT = 4, 6


def load_latest(loaders: dict[str, Any], folder: Path, leg: int) -> None:
    """Load the states that all ranks of the leg before have saved."""
    if leg == 0:
        return
    ranks = [json.loads(path.read_text()) for path in folder.glob(f"leg-{leg - 1}-rank-*.json")]
    loaders["counted"].load_state_dict(merge_states([rank["state"] for rank in ranks]))
    saved = [torch.load(path) for path in folder.glob(f"leg-{leg - 1}-rank-*.pt")]
    loaders["filtered"].load_state_dict(merge_states(saved))


def save(loaders: dict[str, Any], rows: dict[str, list[int]], folder: Path, leg: int) -> None:
    name = f"leg-{leg}-rank-{dist.get_rank()}"
    torch.save(loaders["filtered"].state_dict(), folder / f"{name}.pt")
    padded = {kind: loader.stats()["padded"] for kind, loader in loaders.items()}
    found = {"state": loaders["counted"].state_dict(), "rows": rows, "padded": padded}
    (folder / f"{name}.json").write_text(json.dumps(found))
    dist.barrier()


def main(data: Path, folder: Path, leg: int, *, last: bool) -> None:
    dist.init_process_group("gloo")
    loaders = {
        kind: StructuredDataset.create_dataloader(
            data, batch_size=32, shuffle=True, split_rows=50, mix=2, **options
        )[0]
        for kind, options in KINDS.items()
    }
    load_latest(loaders, folder, leg)
    rows: dict[str, list[int]] = {kind: [] for kind in KINDS}
    batches = {kind: iter(loader) for kind, loader in loaders.items()}
    step = 0
    while batches:
        step += 1
        for kind in list(batches):
            batch = next(batches[kind], None)
            if batch is None:
                del batches[kind]
            else:
                rows[kind] += batch["id"].tolist()
        if not last and step == SAVED_AT:
            save(loaders, rows, folder, leg)
        if not last and step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
    save(loaders, rows, folder, leg)
    leave_together()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), last=sys.argv[4] == "last")
