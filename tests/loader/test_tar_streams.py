"""Samples of tars through the loader: order, workers, resuming, and samples that are left out."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.dataset as ds
import pytest
import torch
from sample_tars import sample, write_samples, write_tar

from headrace import (
    FileChangedError,
    ReadError,
    SkippedDataWarning,
    StatefulLoader,
    TarDataset,
)
from headrace.loader._workers import WorkerPool
from headrace.options import LoaderOptions, resolve
from headrace.testing import ResumeContract

COUNTS = (40, 3, 0, 57)
ROWS = sum(COUNTS)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("tars"), COUNTS)


def loaded(source: Any, **options: Any) -> StatefulLoader:
    loader, _ = TarDataset.create_dataloader(source, **{"num_workers": 0, **options})
    assert isinstance(loader, StatefulLoader)
    return loader


def keys_of(batches: Iterable[Any]) -> list[int]:
    return [int(key) for batch in batches for key in batch["__key__"]]


def fields_of(number: int) -> dict[str, bytes]:
    return {name.partition(".")[2]: data for name, data in sample(number)}


def check(batch: Any) -> None:
    """Check that the fields of a batch belong to its keys, in any order of fields."""
    for place, key in enumerate(batch["__key__"]):
        expected = fields_of(int(key))
        assert {name: batch[name][place] for name in expected} == expected


@pytest.mark.parametrize("output_format", ["torch", "numpy", "dict", "arrow"])
@pytest.mark.parametrize("mix", [1, 3])
def test_all_bytes_once_in_every_format(folder: Path, output_format: str, mix: int) -> None:
    loader = loaded(
        folder, batch_size=16, output_format=output_format, mix=mix, shuffle=mix > 1, split_rows=9
    )
    batches = list(loader)
    if output_format == "arrow":
        batches = [batch.to_pydict() for batch in batches]
    keys = keys_of(batches)
    assert sorted(keys) == list(range(ROWS))
    assert (keys == sorted(keys)) == (mix == 1)
    for batch in batches:
        check(batch)
        assert all(type(value) is bytes for value in batch["png"])
    assert len(loader) == len(batches) == 7


@pytest.mark.parametrize(("output_format", "started"), [("torch", "fork"), ("numpy", "forkserver")])
def test_workers_share_one_tar(folder: Path, output_format: str, started: str) -> None:
    loader = loaded(
        folder,
        num_workers=2,
        batch_size=8,
        output_format=output_format,
        shuffle=True,
        mix=2,
        multiprocessing_context=started,
    )
    for _ in range(2):
        batches = list(loader)
        assert sorted(keys_of(batches)) == list(range(ROWS))
        for batch in batches:
            check(batch)


def test_some_columns_and_a_filter(folder: Path) -> None:
    loader = loaded(folder, columns=["cls"], decode=["cls"], filters=[("cls", "==", 3)])
    assert torch.cat([batch["cls"] for batch in loader]).tolist() == [3] * 10
    loader = loaded(folder, columns=["txt"], decode=["cls"], filters=[("cls", "in", [1, 2])])
    (batch,) = loader
    assert batch["txt"][:2] == ["ä 1".encode(), "ä 2".encode()]


def test_what_is_missing_is_filled_or_marked(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("a.bin", b"1"), ("a.txt", b"x"), ("b.bin", b"")])
    write_tar(tmp_path / "b.tar", [("c.txt", b"y"), ("d.bin", b"2")])
    (batch,) = loaded(tmp_path, columns=["bin", "txt"], nulls={"bin": None, "txt": b"-"})
    assert batch == {"bin": [b"1", b"", None, b"2"], "txt": [b"x", b"-", b"y", b"-"]}
    for workers in (0, 1):
        (batch,) = loaded(tmp_path, columns=["bin"], nulls="mask", num_workers=workers)
        assert batch["bin"] == [b"1", b"", b"", b"2"]
        assert batch["bin_mask"].tolist() == [False, False, True, False]
    there = ds.field("bin").is_valid()
    (batch,) = loaded(tmp_path, columns=["bin"], filters=there)
    assert batch["bin"] == [b"1", b"", b"2"]
    (batch,) = loaded(tmp_path, columns=["bin"], filters=ds.field("bin") == b"2")
    assert batch["bin"] == [b"2"]


class TestResumeOfTars(ResumeContract):
    options: ClassVar[dict[str, Any]] = {
        "batch_size": 9,
        "shuffle": True,
        "mix": 2,
        "split_rows": 7,
    }

    @classmethod
    def write(cls, directory: Path) -> None:
        write_samples(directory, COUNTS)

    @classmethod
    def create(cls, directory: Path, **options: Any) -> StatefulLoader:
        return loaded(
            directory, **{"columns": ["__key__", "png", "npy"], "decode": ["npy"]}, **options
        )


def test_a_state_goes_on_with_other_workers_and_ranks(folder: Path) -> None:
    options = {"batch_size": 5, "shuffle": True, "split_rows": 10, "lanes": 4}
    loader = loaded(folder, num_workers=2, **options)
    batches = iter(loader)
    first = [next(batches) for _ in range(8)]
    state = loader.state_dict()
    rest = keys_of(batches)
    ranks = [loaded(folder, rank=rank, world_size=2, **options) for rank in (0, 1)]
    for one in ranks:
        one.load_state_dict(state)
    assert sorted(key for one in ranks for key in keys_of(one)) == sorted(rest)
    assert sorted(keys_of(first) + rest) == list(range(ROWS))


def test_samples_that_do_not_decode_are_left_out(tmp_path: Path) -> None:
    members = [one for i in range(20) for one in sample(i)]
    broken = dict(members) | {"000007.png": b"no image", "000013.npy": b"no array"}
    write_tar(tmp_path / "a.tar", broken.items())
    options = {"decode": ["png", "npy"], "columns": ["__key__", "png", "npy"], "batch_size": 4}
    with pytest.raises(ReadError, match=r"a\.tar, member '000007\.png'.*image"):
        list(loaded(tmp_path, **options))
    loader = loaded(tmp_path, on_error="skip", **options)
    with pytest.warns(SkippedDataWarning, match=r"000007\.png"):
        assert keys_of(loader) == [i for i in range(20) if i not in (7, 13)]
    (skipped,) = loader.stats()["skipped_chunks"]
    assert "000007.png" in skipped
    assert "1 more" in skipped


def test_large_members_are_left_out_and_counted(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [(f"{i}.bin", b"x" * (100 + 50 * i)) for i in range(6)])
    with pytest.raises(ReadError, match=r"'5\.bin' has 350 bytes.*max_file_size=300"):
        list(loaded(tmp_path, max_file_size=300))
    loader = loaded(tmp_path, max_file_size=300, on_error="skip")
    with pytest.warns(SkippedDataWarning, match=r"5\.bin"):
        assert keys_of(loader) == [0, 1, 2, 3, 4]
    assert "5.bin" in loader.stats()["skipped_chunks"][0]


def test_a_tar_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [(f"{i}.bin", b"x" * 100_000) for i in range(200)])
    loader = loaded(tmp_path, batch_size=10, prefetch_bytes=1 << 20)
    batches = iter(loader)
    next(batches)
    with open(path, "r+b") as file:
        file.truncate(100_000)
    with pytest.raises(FileChangedError, match=r"a\.tar"):
        list(batches)


def test_parcels_of_bytes_have_a_bound(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [(f"{i}.bin", bytes(100_000)) for i in range(40)])
    options = resolve(LoaderOptions, {"num_workers": 2})
    for prefetch_bytes, batches in (("256MiB", 20), ("4MiB", 2), ("1KiB", 1)):
        dataset = TarDataset(tmp_path, batch_size=4, prefetch_bytes=prefetch_bytes)
        assert WorkerPool(dataset, options)._parcel_batches() == batches
    small = TarDataset(tmp_path, batch_size=4, load_file_data=False)
    assert WorkerPool(small, options)._parcel_batches() == 32


def test_two_datasets_of_the_same_tars(folder: Path) -> None:
    """Check that the second dataset can use the memory maps of the first one after that is gone."""
    first = TarDataset(folder, columns=["__key__", "png"], batch_size=8)
    next(iter(first))
    second = iter(TarDataset(folder, columns=["__key__", "png"], batch_size=8))
    begun = next(second)
    del first
    gc.collect()
    batches = [begun, *second]
    assert keys_of(batches) == list(range(ROWS))
    assert all(
        value == fields_of(int(key))["png"]
        for batch in batches
        for key, value in zip(batch["__key__"], batch["png"], strict=True)
    )


def test_metadata_streams(folder: Path) -> None:
    batches = list(loaded(folder, load_file_data=False, batch_size=32))
    assert keys_of(batches) == list(range(ROWS))
    assert all(path.endswith(".png") for batch in batches for path in batch["path"])
    assert batches[0]["offset"].dtype == torch.int64
    assert torch.isnan(batches[0]["aspect"]).all()


@pytest.mark.parametrize("workers", [0, 1])
def test_streams_over_http(
    http_server: Any,
    folder: Path,
    tmp_path: Path,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    urls = [
        http_server.put(f"tars/{path.name}", path.read_bytes())
        for path in sorted(folder.glob("*.tar"))
    ]
    loader = loaded(urls, batch_size=16, num_workers=workers)
    before = len(http_server.log)
    batches = list(loader)
    assert sorted(keys_of(batches)) == list(range(ROWS))
    for batch in batches:
        check(batch)
    asked = len(http_server.log) - before
    assert 0 < loader.stats()["requests"] <= asked
    if not workers:
        assert asked <= 2 * len(urls)
