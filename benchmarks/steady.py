"""Throughput in the steady state on one machine: arms in fresh processes, interleaved, medians.

    python benchmarks/steady.py cores      # in order and shuffled, by number of cores
    python benchmarks/steady.py gpu        # the same on a CUDA device
    python benchmarks/steady.py images     # JPEG in tars, decoded by the CPU and by the GPU

Writes a table (Markdown) and the figures (JSON) to ``docs/benchmarks/steady-<name>.*``. The data
is 12M rows of 21 columns of Parquet, or 8,000 JPEGs, in the page cache. An arm reads it once to
warm up, then counts the rows of whole epochs. The other arms are ``pyarrow.dataset``'s scanner,
plain torch and plain torchvision.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import torch

import headrace

COLUMNS = 20
SHUFFLED: dict[str, Any] = {"shuffle": True, "split_rows": 100_000, "mix": 4}
ON_CARD: dict[str, Any] = {"shuffle": True, "split_rows": 100_000, "mix": 16}
STACK: dict[str, Any] = {"stack": {"x": "f*"}}
_STEP_S = 0.005
_IMAGES, _IMAGES_IN_TAR = 8000, 500


def write_data(folder: Path, rows: int) -> None:
    """Write files of 1.5M rows, unless they exist."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for part, first in enumerate(range(0, rows, 1_500_000)):
        path = folder / f"{part}.parquet"
        if path.exists():
            continue
        ids = np.arange(first, min(first + 1_500_000, rows))
        columns = {f"f{n}": rng.normal(size=len(ids)).astype(np.float32) for n in range(COLUMNS)}
        table = pa.table({"row": ids, **columns})
        pq.write_table(table, path, row_group_size=100_000)  # other options as by default


def write_images(folder: Path) -> None:
    """Write tars of JPEGs of 500 x 375 pixels, unless they exist."""
    from PIL import Image

    rng = np.random.default_rng(2)
    for first in range(0, _IMAGES, _IMAGES_IN_TAR):
        path = folder / f"{first:06d}.tar"
        if path.exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as tar:
            for number in range(first, first + _IMAGES_IN_TAR):
                coarse = Image.fromarray(rng.integers(0, 256, (47, 63, 3), np.uint8))
                memory = BytesIO()
                coarse.resize((500, 375), Image.Resampling.BICUBIC).save(memory, "JPEG", quality=90)
                member = tarfile.TarInfo(f"{number:06d}.jpg")
                member.size = memory.tell()
                memory.seek(0)
                tar.addfile(member, memory)


def _images(folder: Path, decode: str) -> Callable[[], int]:
    loader, _ = headrace.TarDataset.create_dataloader(
        folder,
        columns=["jpg"],
        decode={"jpg": decode},
        batch_size=64,
        device="cuda",
        shuffle=True,
        num_workers=0,
    )

    def epoch() -> int:
        rows = sum(len(batch["jpg"]) for batch in loader)
        torch.cuda.synchronize()
        return rows

    return epoch


def _images_by_torchvision(folder: Path) -> Callable[[], int]:
    """Read batches of 64 files that are in memory before the clock starts."""
    from torchvision.io import ImageReadMode, decode_jpeg

    loader, _ = headrace.TarDataset.create_dataloader(
        folder, columns=["jpg"], batch_size=64, num_workers=0
    )
    batches = [
        [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in batch["jpg"]]
        for batch in loader
    ]

    def epoch() -> int:
        rows = sum(
            len(torch.stack(decode_jpeg(batch, ImageReadMode.RGB, "cuda"))) for batch in batches
        )
        torch.cuda.synchronize()
        return rows

    return epoch


def _loader(folder: Path, batch_size: int, **options: Any) -> Any:
    return headrace.StructuredDataset.create_dataloader(
        folder, batch_size=batch_size, num_workers=options.pop("num_workers", 0), **options
    )[0]


def _epochs(folder: Path, batch_size: int, **options: Any) -> Callable[[], int]:
    on_card = "device" in options
    loader = _loader(folder, batch_size, **options)

    def epoch() -> int:
        rows = 0
        for batch in loader:
            rows += len(next(iter(batch.values())))
        if on_card:
            torch.cuda.synchronize()
        return rows

    return epoch


def _scanner(folder: Path, batch_size: int) -> Callable[[], int]:
    data = ds.dataset(folder)

    def epoch() -> int:
        return sum(batch.num_rows for batch in data.to_batches(batch_size=batch_size))

    return epoch


def _moved_by_column(folder: Path, batch_size: int) -> Callable[[], int]:
    """Pin and copy each column of each batch separately, over the same reader."""
    loader = _loader(folder, batch_size, pin_memory=True)

    def epoch() -> int:
        rows = 0
        for batch in loader:
            moved = {name: values.to("cuda", non_blocking=True) for name, values in batch.items()}
            rows += len(moved["row"])
        torch.cuda.synchronize()
        return rows

    return epoch


def _waiting(folder: Path, batch_size: int) -> Callable[[], int]:
    """Take a step of 5 ms for each batch; print the share of the time spent waiting for batches.

    The share within an epoch leaves out the wait for the first batch.
    """
    loader = _loader(folder, batch_size, device="cuda", **ON_CARD, **STACK)

    def epoch() -> int:
        waits, rows, began = [], 0, time.perf_counter()
        for waited, batch in _timed(loader):
            waits.append(waited)
            rows += len(batch["row"])
            torch.cuda.synchronize()
            time.sleep(_STEP_S)
        took = time.perf_counter() - began
        shares = {"share": sum(waits) / took, "within": sum(waits[1:]) / (took - waits[0])}
        print(json.dumps(shares), flush=True)
        return rows

    return epoch


def _timed(loader: Any) -> Iterator[tuple[float, Any]]:
    batches = iter(loader)
    while True:
        began = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            return
        yield time.perf_counter() - began, batch


Arms = dict[str, Callable[[Path], Callable[[], int]]]

CORES: Arms = {
    "scanner": lambda folder: _scanner(folder, 131_072),
    "in order, 1,024": lambda folder: _epochs(folder, 1024),
    "in order, 1,024, stack": lambda folder: _epochs(folder, 1024, **STACK),
    "in order, 8,192": lambda folder: _epochs(folder, 8192),
    "shuffled, 1,024": lambda folder: _epochs(folder, 1024, **SHUFFLED),
    "shuffled, 8,192": lambda folder: _epochs(folder, 8192, **SHUFFLED),
    "shuffled, 8,192, stack": lambda folder: _epochs(folder, 8192, **SHUFFLED, **STACK),
    "shuffle=True alone, 8,192": lambda folder: _epochs(folder, 8192, shuffle=True),
}
GPU: Arms = {
    "scanner": lambda folder: _scanner(folder, 131_072),
    "in order, 8,192": lambda folder: _epochs(folder, 8192, device="cuda"),
    "in order, 1,024": lambda folder: _epochs(folder, 1024, device="cuda"),
    "in order, 1,024, stack": lambda folder: _epochs(folder, 1024, device="cuda", **STACK),
    "pinned, one .to a column, 1,024": lambda folder: _moved_by_column(folder, 1024),
    "shuffled, 8,192": lambda folder: _epochs(
        folder, 8192, device="cuda", device_bytes="4GiB", **ON_CARD
    ),
    "shuffled, 1,024, stack": lambda folder: _epochs(
        folder, 1024, device="cuda", device_bytes="4GiB", **ON_CARD, **STACK
    ),
    "cached, shuffled, 8,192, stack": lambda folder: _epochs(
        folder, 8192, device="cuda", device_bytes="8GiB", device_cache=True, **ON_CARD, **STACK
    ),
    "waits of a 5 ms step, 65,536": lambda folder: _waiting(folder, 65_536),
}
IMAGES: Arms = {
    "torchvision, bytes in memory": _images_by_torchvision,
    "decoded by the CPU, moved": lambda folder: _images(folder, "image"),
    "decoded by the GPU": lambda folder: _images(folder, "nvjpeg"),
}
TABLES: dict[str, Arms] = {"cores": CORES, "gpu": GPU, "images": IMAGES}


def run_arm(name: str, arm: str, folder: Path, seconds: float) -> None:
    """Print the rows per second of an arm, after one epoch to warm up."""
    epoch = TABLES[name][arm](folder)
    epoch()
    rows, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        rows += epoch()
    print(json.dumps({"rate": rows / (time.perf_counter() - began)}), flush=True)


def measure(name: str, folder: Path, rounds: int, cores: list[int], seconds: float) -> list[Any]:
    """Return a line for each arm and number of cores."""
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for count in cores:
            for arm in TABLES[name]:
                command = [sys.executable, __file__, name, "--arm", arm, "--data", str(folder)]
                done = subprocess.run(
                    [*command, "--cores", str(count), "--seconds", str(seconds)],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    print(f"{arm}: {done.stderr[-500:]}", file=sys.stderr)
                    continue
                result: dict[str, float] = {}
                for line in done.stdout.splitlines():
                    result.update(json.loads(line))
                found.setdefault((arm, count), []).append(result)
    return [
        {
            "arm": arm,
            "cores": count,
            "rows_per_s": statistics.median(each["rate"] for each in results),
            "runs": [each["rate"] for each in results],
            "share_waited": results[-1].get("share"),
            "share_within_epoch": results[-1].get("within"),
        }
        for (arm, count), results in found.items()
    ]


def table(lines: list[Any]) -> str:
    """Return the results as a Markdown table."""
    first = {line["cores"]: line["rows_per_s"] for line in reversed(lines)}
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    text = [
        f"{platform.machine()}, {os.cpu_count()} cores, {card}; torch {torch.__version__}, pyarrow "
        f"{pa.__version__}, headrace {headrace.__version__}. Medians.",
        "",
        "| arm | cores | M rows/s | of the first arm | step waits, but for the first batch |",
        "|---|---|---|---|---|",
    ]
    for line in lines:
        ratio = line["rows_per_s"] / first[line["cores"]]
        shares = [line["share_waited"], line["share_within_epoch"]]
        share = "" if None in shares else ", ".join(f"{100 * one:.1f} %" for one in shares)
        text.append(
            f"| {line['arm']} | {line['cores']} | {line['rows_per_s'] / 1e6:.4g} | {ratio:.2f} "
            f"| {share} |"
        )
    return "\n".join(text) + "\n"


def main() -> None:
    """Measure all arms, or run one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=TABLES)
    parser.add_argument("--arm")
    parser.add_argument("--data", type=Path, default=Path("benchmarks/data/steady"))
    parser.add_argument("--rows", type=int, default=12_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, default=5.0, help="time of an arm, after warming")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    options = parser.parse_args()
    mine = sorted(os.sched_getaffinity(0))
    cores = options.cores or [len(mine)]
    if options.arm is not None:
        os.sched_setaffinity(0, mine[: cores[0]])
        pa.set_cpu_count(cores[0])
        run_arm(options.name, options.arm, options.data, options.seconds)
        return
    if options.name == "images":
        write_images(options.data)
    else:
        write_data(options.data, options.rows)
    lines = measure(options.name, options.data, options.rounds, cores, options.seconds)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"steady-{options.name}.json").write_text(json.dumps(lines, indent=1))
    (options.out / f"steady-{options.name}.md").write_text(table(lines))
    print(table(lines))


if __name__ == "__main__":
    main()
