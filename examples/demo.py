"""Train a small model, stop in mid-epoch, resume in a new process, and count every row.

``make demo`` runs this file. It starts itself twice: once with ``train``, which stops after some
batches and saves model, optimizer and loader, and once with ``resume``, which continues from there.
At the end the rows of both processes are compared with the rows of a run without a stop.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from headrace import StructuredDataset

FILES = 8
FEATURES = 16
BATCH_SIZE = 1024
CHECKPOINT = "checkpoint.pt"


def write_data(folder: Path, rows: int) -> None:
    """Write Parquet files with an id, a vector of features, and a label that follows from it."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    direction = random.normal(size=FEATURES)
    for number, ids in enumerate(np.array_split(np.arange(rows), FILES)):
        features = random.normal(size=(len(ids), FEATURES)).astype(np.float32)
        label = (features @ direction + 0.5 * features[:, 0] * features[:, 1] > 0).astype(
            np.float32
        )
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), FEATURES)
        table = pa.table({"id": ids, "features": vectors, "label": label})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=12_500)


def make_loader(folder: Path):
    """Return the loader that every process of the demo uses; chunks and rows are shuffled."""
    loader, _ = StructuredDataset.create_dataloader(
        folder / "data", batch_size=BATCH_SIZE, shuffle=True, split_rows=12_500, mix=4
    )
    return loader


def train(folder: Path, *, resume: bool, stop_after: int | None) -> None:
    """Train from the start or from the saved state, to the end or until ``stop_after`` batches."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # threads would only wait for each other
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = make_loader(folder)
    total = len(loader)
    done = 0
    if resume:
        saved = torch.load(folder / CHECKPOINT, weights_only=True, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        done = saved["batches"]
    ids = []
    progress = Progress(total, done)
    for batch in loader:
        features, label = batch["features"].to(device), batch["label"].to(device)
        logits = model(features).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ids.append(batch["id"].numpy().copy())
        done += 1
        progress.show(done, len(batch["id"]), loss.item())
        if done == stop_after:
            break
    progress.close()
    np.save(folder / f"seen-{'resume' if resume else 'train'}.npy", np.concatenate(ids))
    parts = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),
        "batches": done,
    }
    torch.save(parts, folder / CHECKPOINT)


class Progress:
    """A bar that redraws itself in a terminal, or a line every quarter in a log."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self.rows, self.loss = total, 0, None
        self.began = self.drawn = time.monotonic()
        self.quarter = 4 * done // total
        self.live = sys.stdout.isatty()
        self.line = ""

    def show(self, done: int, rows: int, loss: float) -> None:
        self.rows += rows
        self.loss = loss if self.loss is None else 0.95 * self.loss + 0.05 * loss
        now = time.monotonic()
        filled = 28 * done // self.total
        self.line = (
            f"   [{'#' * filled}{'.' * (28 - filled)}] {done:>4}/{self.total} batches"
            f"   loss {self.loss:.3f}   {self.rows / (now - self.began) / 1e3:,.0f}k rows/s"
        )
        if self.live and (now - self.drawn > 0.1 or done == self.total):
            print(f"\r{self.line}", end="\033[K", flush=True)
            self.drawn = now
        elif not self.live and 4 * done // self.total > self.quarter:
            print(self.line, flush=True)
            self.quarter = 4 * done // self.total

    def close(self) -> None:
        """Leave the bar as it is at the end."""
        if self.live:
            print(f"\r{self.line}\033[K", flush=True)


def run_part(folder: Path, *arguments: str) -> np.ndarray:
    """Run this file in a new process, and return the ids of the rows it has read, in order."""
    command = [sys.executable, __file__, "--folder", str(folder), *arguments]
    subprocess.run(command, check=True)
    return np.load(folder / f"seen-{arguments[0]}.npy")


def ids_without_a_stop(folder: Path) -> Iterator[np.ndarray]:
    """Yield the ids as an uninterrupted run delivers them."""
    for batch in make_loader(folder):
        yield batch["id"].numpy().copy()


def demo(folder: Path, rows: int) -> int:
    """Run all parts; return 0 if every row came exactly once."""
    write_data(folder / "data", rows)
    size = sum(file.stat().st_size for file in (folder / "data").iterdir())
    print(f"1. data: {rows:,} rows in {FILES} Parquet files, {size / 2**20:.0f} MiB")

    stop_after = max(1, int(0.4 * rows / BATCH_SIZE))
    print(f"2. train: one process, shuffled; it stops after {stop_after} batches", flush=True)
    first = run_part(folder, "train", "--stop-after", str(stop_after))
    state = len(json.dumps(torch.load(folder / CHECKPOINT, weights_only=True)["loader"]))
    print(f"   stopped in mid-epoch; the loader's state is {state} bytes of JSON")

    print("3. resume: a new process continues from the checkpoint", flush=True)
    second = run_part(folder, "resume")

    ids = np.concatenate([first, second])
    times = np.bincount(ids, minlength=rows)
    lost, repeated = int((times == 0).sum()), int((times > 1).sum())
    whole = np.concatenate(list(ids_without_a_stop(folder)))
    same_order = np.array_equal(ids, whole)
    print(f"4. count: {len(first):,} + {len(second):,} = {len(ids):,} rows")
    print(f"   lost: {lost}   seen twice: {repeated}")
    print(f"   same order as a run without a stop: {'yes' if same_order else 'NO'}")
    if lost or repeated or not same_order:
        print("Something is wrong: the rows above should all have come exactly once.")
        return 1
    print("Every row was seen exactly once, across the stop and the new process.")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=["demo", "train", "resume"], default="demo")
    parser.add_argument("--folder", type=Path, default=Path("demo-data"))
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--stop-after", type=int)
    options = parser.parse_args()
    if options.part == "demo":
        return demo(options.folder, options.rows)
    train(options.folder, resume=options.part == "resume", stop_after=options.stop_after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
