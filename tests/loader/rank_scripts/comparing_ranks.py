"""Ranks whose data or options differ."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
from rank_scripts.rank_processes import refusal
from sample_tars import write_samples
from small_files import all_ids, write_csv, write_parquet
from torch import distributed as dist

from headrace import (
    DataFileInfo,
    FileSplit,
    HeadraceError,
    RankMismatchError,
    Split,
    StructuredDataset,
    TarDataset,
)
from headrace.loader import _agreement as agreement
from headrace.loader._agreement import ComparedFiles, RankComparison
from headrace.loader.ranks import find_ranks
from headrace.model import FileList
from headrace.sources.tar.indexing import index_tars

OPTIONS: dict[str, Any] = {"batch_size": 20, "num_workers": 0, "shuffle": True, "split_rows": 30}


class Shuffled:
    """Whole files in an order that depends on a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> list[Split]:
        order = np.random.default_rng(self.seed).permutation(len(files)).tolist()
        chunks = [FileSplit(files[index]) for index in order]
        return [Split(lane, chunks[lane::num_workers]) for lane in range(num_workers)]


def outcome(make: Callable[[], Any]) -> Any:
    """Return the rows of an epoch, or the message of the error, which is the same every time."""
    loader = make()
    try:
        return all_ids(loader)
    except RankMismatchError as error:
        again = refusal(RankMismatchError, list, loader)
        return str(error) if again == str(error) else [str(error), again]


def make(folder: Path, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(folder, **{**OPTIONS, **options})[0]


def copied(folder: Path, rank: int, write: Callable[..., Path] = write_parquet) -> Path:
    """Copy the data for a rank, with other times of change."""
    own = write(folder / f"rank-{rank}" / write.__name__)
    for number, file in enumerate(sorted(own.iterdir())):
        os.utime(file, ns=(10**18, 10**18 + 10**9 * (100 * rank + number)))
    return own


def compare_in_all_ways(folder: Path, rank: int) -> dict[str, Any]:
    """Return the results of all cases, in which the last of three ranks differs from the others."""
    own, text, last = copied(folder, rank), copied(folder, rank, write_csv), rank == 2
    shared = {"shuffle": False, "split_rows": None}
    names = {f"row {number}" for number in range(0, 1154, 2)}
    cases: dict[str, Callable[[], Any]] = {
        "copies": lambda: make(own),
        "copies of text": lambda: make(text, **shared, format="csv"),
        "by hand": lambda: make(own, rank=rank, world_size=3),
        "sets in filters": lambda: make(own, filters=[("name", "in", names)]),
        "other filters": lambda: make(own, filters=[("id", ">", 5 + rank)]),
        "batch_size": lambda: make(own, batch_size=21 if last else 20),
        "shuffle_seed": lambda: make(own, shuffle_seed=int(last)),
        "split_rows": lambda: make(own, split_rows=31 if last else 30),
        "lanes": lambda: make(own, lanes=6 if last else 3),
        "strategy": lambda: make(own, **shared, split_strategy=Shuffled(int(last))),
        "drop_last": lambda: make(own, drop_last=last),
        "uneven": lambda: make(own, even=False),
    }
    results = {name: outcome(case) for name, case in cases.items()}
    if last:
        (own / "part-02.parquet").unlink()
        (text / "part-01.csv").unlink()
    dist.barrier()
    results["missing"] = outcome(lambda: make(own))
    results["missing text"] = outcome(lambda: make(text, **shared, format="csv"))
    results["other ranks of their own"] = len(all_ids(make(own, rank=0, world_size=1)))
    if last:
        write_parquet(own, [(400, 128), (1, 1), (300, 90), (250, 250), (0, 1), (203, 64)])
    results["another size"] = outcome(lambda: make(own))
    tars = write_samples(folder / f"rank-{rank}" / "tars", [6, 6, 6])
    index_tars(tars, geometry=True)
    results["buckets of copies"] = outcome(lambda: bucketed(tars))
    if last:
        (tars / "shard_0001.tar").unlink()
    results["buckets"] = outcome(lambda: bucketed(tars))
    return results


def bucketed(folder: Path) -> Any:
    return TarDataset.create_dataloader(
        folder,
        bucketed=True,
        batch_size=2,
        num_workers=0,
        columns=["__key__", "png"],
        transform=lambda batch: {"id": np.array(batch["__key__"], int)},
    )[0]


def look_on_one_rank_only(folder: Path, rank: int) -> int:
    """Make loaders of which only rank 0's is used; the other rank does not block it."""
    loader = make(folder)
    results = len(next(iter(loader))["id"]) if rank == 0 else 0
    dist.barrier()
    return results


def lose_before_telling(rank: int) -> Any:
    """Return rank 0's error and waiting time if rank 1 is lost before it makes its loader."""
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    files = ComparedFiles(FileList([DataFileInfo("a", 1)]), ["/"], local=True)
    comparison = RankComparison(find_ranks(), files, dict, timeout_s=1.0)
    began = time.monotonic()
    try:
        comparison.check()
    except HeadraceError as error:
        return type(error), str(error), time.monotonic() - began
    return None


def name_of_many(rank: int) -> str:
    """Return the name of the first file that differs; the store may end with rank 0."""
    use_a_store_of_rank_0(rank)
    root = f"/data/of-rank-{rank}"
    files = FileList([DataFileInfo(f"{root}/{n:05}", n) for n in range(5_000 - rank)])
    if rank == 1:
        files.sizes[4_321] = 1
    comparison = RankComparison(find_ranks(), ComparedFiles(files, [root], local=True), dict)
    return refusal(RankMismatchError, comparison.check)


def read_after_rank_0_has_ended(data: Path, folder: Path, rank: int) -> list[int]:
    """Return the rows of this rank; rank 1 asks for its first row when rank 0 has ended."""
    end_of_rank_0 = watch_rank_0(folder, rank)
    loader = make(data)
    dist.barrier()
    if rank == 1:
        wait([end_of_rank_0])
    return all_ids(loader)


class EndingStore:
    """A store whose process ends while this rank waits for the answer to its last request."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add(self, key: str, amount: int) -> int:
        self._store.add(key, amount)
        raise dist.DistNetworkError("Connection reset by peer")


def read_although_the_store_ends(data: Path, rank: int) -> list[int]:
    """Return the rows of this rank; rank 1 loses the store after it has announced its data."""
    own_store = agreement._own_store
    if rank == 1:
        agreement._own_store = lambda *args: EndingStore(own_store(*args))
        loader = make(data)
    dist.barrier()
    return all_ids(loader if rank == 1 else make(data))


def make_after_rank_0_has_ended(data: Path, folder: Path, rank: int) -> list[int]:
    """Return the rows of this rank; rank 0 has none to read, and ends before rank 1 begins."""
    end_of_rank_0 = watch_rank_0(folder, rank)
    dist.barrier()
    if rank == 0:
        return []
    wait([end_of_rank_0])
    return all_ids(make(data))


def watch_rank_0(folder: Path, rank: int) -> int:
    """Let rank 0 run the store, and return a descriptor that is readable once rank 0 has ended."""
    use_a_store_of_rank_0(rank)
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    dist.barrier()
    return os.pidfd_open(int((folder / "0.pid").read_text()))


def use_a_store_of_rank_0(rank: int) -> None:
    """Replace the process group by one whose store is in rank 0, as without a launcher."""
    size, shared = dist.get_world_size(), dist.distributed_c10d._get_default_store()
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, True, wait_for_workers=False)
        shared.set("port", str(store.port))
    else:
        store = dist.TCPStore("127.0.0.1", int(shared.get("port")), size, False)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
