"""Batches on a GPU are equal to those of the host, and not overwritten while kernels read them.

These tests are skipped without a CUDA device.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from sample_tars import write_tar

from headrace import DeviceMemoryError, ReadError, StructuredDataset, TarDataset

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ROWS = 200_000
SHUFFLED: dict[str, Any] = {"shuffle": True, "split_rows": 10_000, "mix": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    rng = np.random.default_rng(7)
    columns = {f"f{n}": rng.normal(size=ROWS).astype(np.float32) for n in range(8)}
    table = pa.table(
        {
            "id": np.arange(ROWS),
            "flag": rng.integers(0, 2, ROWS) == 1,
            "vector": pa.array(list(rng.normal(size=(ROWS, 3))), pa.list_(pa.float64(), 3)),
            "tokens": pa.array([[n] * (n % 4) for n in range(ROWS)]),
            "text": [str(n) for n in range(ROWS)],
            **columns,
        }
    )
    pq.write_table(table, folder / "x.parquet", row_group_size=20_000)
    return folder


def _loader(folder: Path, **options: Any) -> Any:
    return StructuredDataset.create_dataloader(folder, batch_size=1000, **options)[0]


def _assert_equal(host: Any, card: Any) -> None:
    if isinstance(host, dict):
        assert host.keys() == card.keys()
        for key in host:
            _assert_equal(host[key], card[key])
    elif isinstance(host, torch.Tensor):
        assert card.device.type == "cuda"
        assert torch.equal(host, card.cpu())
    elif isinstance(host, list) and host and isinstance(host[0], torch.Tensor):
        for one, other in zip(host, card, strict=True):
            _assert_equal(one, other)
    else:
        assert host == card


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ragged", ["list", "pad", "offsets"])
@pytest.mark.parametrize("order", [{}, SHUFFLED], ids=["in order", "shuffled"])
def test_batches_are_those_of_the_host(
    folder: Path, order: dict[str, Any], ragged: Any, workers: int
) -> None:
    host = _loader(folder, ragged=ragged, num_workers=workers, **order)
    card = _loader(folder, ragged=ragged, num_workers=workers, device="cuda", **order)
    for _ in range(2):
        for one, other in zip(host, card, strict=True):
            _assert_equal(one, other)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("switched", [False, True])
def test_no_batch_is_overwritten_while_kernels_read_it(
    folder: Path, cached: bool, switched: bool
) -> None:
    """Start kernels that read each batch only long after the loader has moved on."""
    expected = [batch["id"].sum().item() for batch in _loader(folder, **SHUFFLED)]
    card = _loader(
        folder,
        device="cuda",
        device_bytes="16MiB",
        device_cache=cached,
        stack={"x": "f*"},
        **SHUFFLED,
    )
    streams = [torch.cuda.Stream(), torch.cuda.Stream()] if switched else [torch.cuda.Stream()]
    sums = []
    batches = iter(card)
    for number in range(len(card)):
        with torch.cuda.stream(streams[number // 2 % len(streams)]):
            batch = next(batches)
            torch.cuda._sleep(2_000_000)
            sums.append(batch["id"].sum())
            del batch
    torch.cuda.synchronize()
    assert [each.item() for each in sums] == expected


def test_a_cached_table_is_not_read_again(folder: Path) -> None:
    host, card = (
        _loader(folder, **SHUFFLED),
        _loader(folder, device="cuda", device_cache=True, **SHUFFLED),
    )
    decoded = []
    for _ in range(3):
        for one, other in zip(host, card, strict=True):
            _assert_equal(one, other)
            other["id"].zero_()
        decoded.append(card.stats()["bytes"])
    assert decoded[0] == decoded[1] == decoded[2]


def test_a_full_device_is_an_error_that_names_the_option(folder: Path) -> None:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(free - (4 << 20), dtype=torch.uint8, device="cuda")
    try:
        with pytest.raises(DeviceMemoryError, match="device_bytes"):
            list(_loader(folder, device="cuda", shuffle=True))
    finally:
        del ballast
        torch.cuda.empty_cache()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # warned by torch about its own torch.jit
def test_compiled_models_and_mixed_precision(folder: Path) -> None:
    model = torch.compile(torch.nn.Linear(8, 1).cuda())
    for batch in _loader(folder, device="cuda", stack={"x": "f?"}, **SHUFFLED):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(batch["x"]).square().mean()
        loss.backward()
    assert torch.isfinite(loss)


def test_pinned_memory_alone(folder: Path) -> None:
    for batch in _loader(folder, pin_memory=True, **SHUFFLED):
        assert batch["id"].is_pinned()


def _encoded(pixels: np.ndarray, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    memory = BytesIO()
    Image.fromarray(pixels).convert(mode).save(memory, kind)
    return memory.getvalue()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write JPEGs of two sizes, some grey or of four colors, PNGs, and samples without an image."""
    folder = tmp_path_factory.mktemp("images")
    coarse = np.random.default_rng(3).integers(0, 256, (100, 6, 8, 3), np.uint8)
    files = []
    for number in range(100):
        # Smooth ones: at the edge of two colors, decoders make different colors in between.
        size = (128, 48 + number % 2 * 48)
        pixels = np.array(Image.fromarray(coarse[number]).resize(size, Image.Resampling.BILINEAR))
        kind = "PNG" if number % 10 == 4 else "JPEG"
        mode = {7: "L", 8: "CMYK" if kind == "JPEG" else "RGB"}.get(number % 10, "RGB")
        files.append((f"{number:03d}.cls", str(number).encode()))
        if number % 10 != 9:
            files.append((f"{number:03d}.jpg", _encoded(pixels, kind, mode)))
    write_tar(folder / "a.tar", files)
    return folder


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", [{}, {"shuffle": True}], ids=["in order", "shuffled"])
def test_images_are_decoded_by_the_device(
    images: Path, order: dict[str, Any], workers: int
) -> None:
    pytest.importorskip("torchvision")
    options = {**order, "batch_size": 8, "num_workers": workers, "columns": ["cls", "jpg"]}
    host, card = (
        TarDataset.create_dataloader(
            images, decode={"cls": "int", "jpg": how}, device=device, **options
        )[0]
        for how, device in (("image", None), ("nvjpeg", "cuda"))
    )
    image_count = 0
    for one, other in zip(host, card, strict=True):
        assert torch.equal(one["cls"], other["cls"].cpu())
        for expected, image in zip(one["jpg"], other["jpg"], strict=True):
            if expected is None:
                assert image is None
                continue
            assert image.device.type == "cuda"
            assert image.shape == expected.shape
            assert (image.cpu().float() - expected.float()).abs().mean() < 4
            image_count += 1
    assert image_count == 90


def test_an_image_that_the_device_cannot_decode(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    whole = _encoded(np.zeros((64, 64, 3), np.uint8))
    write_tar(tmp_path / "a.tar", [("0.jpg", whole), ("1.jpg", whole[: len(whole) // 2])])
    loader, _ = TarDataset.create_dataloader(
        tmp_path, decode={"jpg": "nvjpeg"}, device="cuda", num_workers=0
    )
    with pytest.raises(ReadError, match="column 'jpg'"):
        list(loader)


def test_two_ranks_share_a_device(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, torch, torch.distributed as dist
            from headrace import StructuredDataset
            dist.init_process_group("gloo")
            loader, _ = StructuredDataset.create_dataloader(
                {str(folder)!r}, batch_size=1000, device="cuda", shuffle=True, stack={{"x": "f?"}}
            )
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1).cuda())
            ids = []
            for batch in loader:
                model(batch["x"]).sum().backward()
                ids.append(batch["id"])
            torch.save(torch.cat(ids).cpu(), {str(tmp_path)!r} + f"/{{dist.get_rank()}}.pt")
            dist.destroy_process_group()
            """
        )
    )
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*run, str(script)], check=True, timeout=300, env={**os.environ})
    ids = torch.cat([torch.load(tmp_path / f"{rank}.pt") for rank in range(2)])
    assert sorted(ids.tolist()) == list(range(ROWS))
