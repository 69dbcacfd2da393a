"""Batches on a device. The CPU uses the same code, so it is tested without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from headrace import OptionError, StructuredDataset

ROWS = 6_000
ORDERS: dict[str, dict[str, Any]] = {
    "in order": {},
    "mixed": {"shuffle": True, "split_rows": 500, "mix": 4},
    "by default": {"shuffle": True},
    "in turn": {"interleave": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("device")
    rng = np.random.default_rng(5)
    for part in range(2):
        some: list[int | None] = list(range(ROWS // 2))
        some[3] = None
        table = pa.table(
            {
                "id": pa.array(np.arange(ROWS // 2) + part * ROWS),
                "small": pa.array(rng.integers(0, 100, ROWS // 2), pa.uint16()),
                "flag": pa.array(rng.integers(0, 2, ROWS // 2) == 1),
                "null": pa.array(some, pa.int32()),
                "vector": pa.array(
                    [[n, n + 0.5] for n in range(ROWS // 2)], pa.list_(pa.float32(), 2)
                ),
                "tokens": pa.array([[n] * (n % 4) for n in range(ROWS // 2)]),
                "text": pa.array([f"row {n}" for n in range(ROWS // 2)]),
                "s": pa.array([{"a": n, "b": str(n)} for n in range(ROWS // 2)]),
            }
        )
        pq.write_table(table, folder / f"{part}.parquet", row_group_size=700)
    return folder


def _loader(folder: Path, **options: Any) -> Any:
    loader, _ = StructuredDataset.create_dataloader(
        folder, batch_size=256, nulls={"null": "mask"}, prefetch_bytes="1GiB", **options
    )
    return loader


def _assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _assert_equal(one[key], other[key])
    elif isinstance(one, torch.Tensor) and one.is_nested:
        _assert_equal(list(one.unbind()), list(other.unbind()))
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for each, its in zip(one, other, strict=True):
            _assert_equal(each, its)
    else:
        assert one == other


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
@pytest.mark.parametrize("ragged", ["list", "pad", "offsets", "nested"])
def test_batches_are_those_of_the_host(folder: Path, order: dict[str, Any], ragged: Any) -> None:
    here = _loader(folder, ragged=ragged, **order)
    there = _loader(folder, ragged=ragged, device="cpu", **order)
    for _ in range(2):
        for one, other in zip(here, there, strict=True):
            _assert_equal(one, other)


@pytest.mark.parametrize("transform", [None, lambda batch: {"id": batch["id"] + 1}])
def test_batches_of_workers_are_moved(folder: Path, transform: Any) -> None:
    here = _loader(folder, shuffle=True, transform=transform, num_workers=0)
    there = _loader(folder, shuffle=True, transform=transform, num_workers=1, device="cpu")
    for one, other in zip(here, there, strict=True):
        _assert_equal(one, other)


def test_stacks_and_filters(folder: Path) -> None:
    options: dict[str, Any] = {"stack": {"x": ["id", "small"]}, "filters": [("id", ">", 100)]}
    here = _loader(folder, shuffle=True, **options)
    there = _loader(folder, shuffle=True, device=torch.device("cpu"), **options)
    for one, other in zip(here, there, strict=True):
        _assert_equal(one, other)


@pytest.mark.parametrize("order", ["mixed", "in order"])
def test_a_state_goes_on_on_either_side(folder: Path, order: str) -> None:
    here, there = (_loader(folder, device=device, **ORDERS[order]) for device in (None, "cpu"))
    batches = iter(there)
    for _ in range(5):
        next(batches)
    here.load_state_dict(there.state_dict())
    for one, other in zip(here, batches, strict=True):
        _assert_equal(one, other)


@pytest.mark.parametrize("order", ["mixed", "in order", "by default"])
def test_a_cached_table_is_not_read_again(folder: Path, order: str) -> None:
    here = _loader(folder, **ORDERS[order])
    there = _loader(folder, device="cpu", device_cache=True, **ORDERS[order])
    decoded = []
    for _ in range(3):
        for one, other in zip(here, there, strict=True):
            _assert_equal(one, other)
            other["id"].zero_()  # batches belong to the user
            other["s"]["a"].zero_()
        decoded.append(there.stats()["bytes"])
    assert decoded[0] == decoded[1] == decoded[2] > 0


def test_a_table_that_does_not_fit_is_read_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = _loader(folder, split_rows=500, mix=2, shuffle=True)
    there = _loader(
        folder,
        split_rows=500,
        mix=2,
        shuffle=True,
        device="cpu",
        device_cache=True,
        device_bytes="100kB",
    )
    for _ in range(2):
        for one, other in zip(here, there, strict=True):
            _assert_equal(one, other)
    assert [record.message for record in caplog.records if "device_cache" in record.message] == [
        "device_cache=True: the data needs more than device_bytes=100,000; chunks beyond that are "
        "read again in every epoch"
    ]


def test_a_small_budget_is_slow_and_not_stuck(folder: Path) -> None:
    here = _loader(folder, **ORDERS["mixed"])
    there = _loader(folder, device="cpu", device_bytes=1, **ORDERS["mixed"])
    for one, other in zip(here, there, strict=True):
        _assert_equal(one, other)


def test_no_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int8())}), tmp_path / "x.parquet")
    for options in ORDERS.values():
        loader, _ = StructuredDataset.create_dataloader(tmp_path, device="cpu", **options)
        assert list(loader) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "mps"}, 'must be "cuda" or "cpu"'),
        ({"device": "card"}, 'must be "cuda"'),
        ({"device": 1.5}, 'must be "cuda"'),
        ({"device": "cpu", "output_format": "numpy"}, "is for tensors"),
        ({"device_cache": True}, "device_cache=True has no effect without a device; choose one"),
        ({"device_bytes": "2GiB"}, "device_bytes='2GiB' has no effect without a device"),
        ({"device": "cpu", "device_bytes": "much"}, "device_bytes must be"),
    ],
)
def test_wrong_devices(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        StructuredDataset.create_dataloader(folder, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_cuda_without_a_device_is_refused_at_once(folder: Path) -> None:
    with pytest.raises(OptionError, match="torch finds no CUDA device"):
        StructuredDataset.create_dataloader(folder, device="cuda")


def test_workers_of_a_plain_loader_are_refused(folder: Path) -> None:
    _, dataset = StructuredDataset.create_dataloader(folder, device="cpu")
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=1, multiprocessing_context="forkserver"
    )
    with pytest.raises(OptionError, match=r"dataset.loader\(\)"):
        next(iter(loader))
