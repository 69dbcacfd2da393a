"""Decoding of fields of samples is the same in streams and in rows by index."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
import threading
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, features
from sample_tars import SIZES, huge_jpeg, npy, picture, sample, write_samples, write_tar
from torch.utils.data import DataLoader

from headrace import (
    ConversionError,
    MissingExtraError,
    OptionError,
    ReadError,
    SkippedDataWarning,
    TarDataset,
    WorkerError,
)
from headrace.sources.tar.source import TarBackend
from headrace.testing.loader_contract import frozen


def first_batch(source: Path, **options: Any) -> Any:
    loader, _ = TarDataset.create_dataloader(source, **{"num_workers": 0, **options})
    return next(iter(loader))


def text_length(data: bytes) -> dict[str, Any]:
    return {"length": len(data), "first": np.frombuffer(data[:2], np.uint8)}


def as_number(data: bytes) -> int:
    return int(data) + 1


def npy_with(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)


def as_vector(data: bytes) -> np.ndarray:
    return np.full(3, int(data), np.int16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("tars"), [9, 4])


@pytest.mark.parametrize("output_format", ["torch", "dict"])
@pytest.mark.parametrize("workers", [0, 1])
def test_streams_and_rows_are_the_same(folder: Path, output_format: str, workers: int) -> None:
    loader, dataset = TarDataset.create_dataloader(
        folder, decode=True, batch_size=4, output_format=output_format, num_workers=workers
    )
    batches = list(map(frozen, loader))
    by_index = [dataset.rows.batch(range(i, min(i + 4, 13))) for i in range(0, 13, 4)]
    assert batches == list(map(frozen, by_index))
    if output_format == "torch":
        collated = DataLoader(dataset.rows, batch_size=4, num_workers=workers)
        assert list(map(frozen, collated)) == batches


def test_every_extension(folder: Path) -> None:
    batch = first_batch(folder, decode=True, batch_size=5)
    assert [tuple(one.shape) for one in batch["png"]] == [(3, h, w) for w, h in [*SIZES, SIZES[0]]]
    assert all(one.dtype == torch.uint8 for one in batch["png"])
    assert [one[:, 0, 0].tolist() for one in batch["png"]] == [[i, 0, 7] for i in range(5)]
    assert batch["json"][3] == {"id": 3, "caption": "picture 3"}
    assert batch["cls"].tolist() == [0, 1, 2, 3, 4]
    assert batch["npy"].shape == (5, 2, 3)
    assert batch["npy"].dtype == torch.float32
    assert batch["txt"][2] == "ä 2"


def test_nothing_is_decoded_unless_asked_for(folder: Path) -> None:
    batch = first_batch(folder, batch_size=2)
    assert all(type(value) is bytes for name in ("png", "json", "cls") for value in batch[name])
    batch = first_batch(folder, batch_size=2, decode="json", columns=["json", "cls"])
    assert batch["json"][1]["id"] == 1
    assert batch["cls"] == [b"0", b"1"]


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "PNG", "GIF", "BMP"])
def test_images_of_one_shape_are_stacked(tmp_path: Path, kind: str) -> None:
    name = {"JPEG": "jpg"}.get(kind, kind.lower())
    images = [(f"{i}.{name}", picture(i, (10, 6), kind)) for i in range(3)]
    write_tar(tmp_path / "a.tar", images)
    batch = first_batch(tmp_path, decode=True)
    assert batch[name].shape == (3, 3, 6, 10)
    assert batch[name].is_contiguous()
    batch[name].add_(1)
    assert first_batch(tmp_path, decode=True, output_format="numpy")[name].dtype == np.uint8


def test_functions_and_names(folder: Path) -> None:
    decode = {"txt": text_length, "cls": as_number, "npy": "bytes", "json": "text"}
    for workers in (0, 1):
        batch = first_batch(folder, decode=decode, batch_size=3, num_workers=workers)
        assert [one["length"] for one in batch["txt"]] == [4, 4, 4]
        assert batch["cls"].tolist() == [1, 2, 3]
        assert batch["npy"][0] == dict(sample(0))["000000.npy"]
        assert json.loads(batch["json"][2])["id"] == 2
    assert first_batch(folder, decode={"cls": as_vector}, batch_size=3)["cls"].shape == (3, 3)
    with pytest.raises(OptionError, match="arrow"):
        TarDataset(folder, decode=decode, output_format="arrow")


def encoded(array: np.ndarray, kind: str, mode: str | None = None) -> bytes:
    image, memory = Image.fromarray(array), BytesIO()
    if mode is not None:
        image = image.quantize(4) if mode == "P" else image.convert(mode)
    image.save(memory, kind, **({"lossless": True} if kind == "AVIF" else {}))
    return memory.getvalue()


def test_images_as_they_are_stored(tmp_path: Path) -> None:
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    deep = grey.astype(np.uint16) * 5000
    colors = np.zeros((3, 4, 3), np.uint8)
    colors[1] = 255
    write_tar(
        tmp_path / "a.tar",
        [
            ("0.l.png", encoded(grey, "PNG")),
            ("0.deep.png", encoded(deep, "PNG")),
            ("0.deep.tif", encoded(deep, "TIFF")),
            ("0.palette.png", encoded(colors, "PNG", "P")),
            ("0.alpha.png", encoded(colors, "PNG", "RGBA")),
            ("0.bit.png", encoded(grey, "PNG", "1")),
        ],
    )
    names = ["l.png", "deep.png", "deep.tif", "palette.png", "alpha.png", "bit.png"]
    batch = first_batch(tmp_path, decode=dict.fromkeys(names, "pixels"), output_format="numpy")
    assert np.array_equal(batch["l.png"][0], grey[None])
    assert batch["deep.png"].dtype == batch["deep.tif"].dtype == np.uint16
    assert np.array_equal(batch["deep.png"][0], deep[None])
    assert np.array_equal(batch["deep.tif"][0], deep[None])
    assert batch["palette.png"].shape == (1, 1, 3, 4)
    assert len(np.unique(batch["palette.png"])) == 2
    assert batch["alpha.png"].shape == (1, 4, 3, 4)
    assert batch["bit.png"].dtype == np.uint8
    rgb = first_batch(tmp_path, decode=True)
    assert all(rgb[name].shape == (1, 3, 3, 4) for name in names)


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}, {"num_workers": 2}], ids=str)
def test_images_for_a_gpu_are_those_of_the_host_where_there_is_none(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    colors = np.random.default_rng(1).integers(0, 256, (8, 16, 3), np.uint8)
    images = [encoded(colors[:, :1], "PNG"), encoded(colors, "JPEG"), encoded(colors, "JPEG", "L")]
    members = [(f"{n}.jpg", data) for n, data in enumerate(images)]
    write_tar(tmp_path / "a.tar", [*members, ("3.txt", b"no image")])
    expected = first_batch(tmp_path, columns=["jpg"], decode={"jpg": "image"})
    batch = first_batch(tmp_path, columns=["jpg"], decode={"jpg": "nvjpeg"}, **options)
    assert frozen(batch) == frozen(expected)
    backend = TarBackend(tmp_path, decode={"jpg": "nvjpeg"})
    assert np.array_equal(backend.get_row(1)["jpg"], expected["jpg"][1].numpy())


def test_an_image_for_a_gpu_that_does_not_decode(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("0.jpg", b"\xff\xd8 no image")])
    with pytest.raises(ReadError, match=r"column 'jpg': .* do not decode.*decode=\{'jpg': \"image"):
        first_batch(tmp_path, decode={"jpg": "nvjpeg"})


@pytest.mark.parametrize(("kind", "name"), [("TIFF", "tif"), ("BMP", "bmp"), ("AVIF", "avif")])
def test_images_of_other_formats(tmp_path: Path, kind: str, name: str) -> None:
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    colors = np.full((4, 6, 3), 200, np.uint8)
    write_tar(tmp_path / "a.tar", [(f"0.{name}", encoded(colors, kind))])
    assert (first_batch(tmp_path, decode=True)[name].int() - 200).abs().max() <= 2


def test_jpeg_xl_without_its_package_says_what_to_install(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("0.jxl", b"\xff\x0a" + bytes(30))])
    if find_spec("pillow_jxl") is None:
        with pytest.raises(MissingExtraError, match="pip install pillow-jxl-plugin"):
            first_batch(tmp_path, decode=True)


def packed(value: Any) -> bytes:
    memory = BytesIO()
    torch.save(value, memory)
    return memory.getvalue()


def zipped(**arrays: np.ndarray) -> bytes:
    memory = BytesIO()
    np.savez(memory, **arrays)
    return memory.getvalue()


def test_archives_of_arrays_and_compressed_fields(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "a.tar",
        [
            ("0.npz", zipped(a=np.arange(3), b=np.ones((2, 2), np.float32))),
            ("0.json.gz", gzip.compress(b'{"a": 1}')),
            ("0.cls.gz", gzip.compress(b"7")),
            ("0.raw.gz", gzip.compress(b"raw", mtime=0)),
            ("0.png.gz", gzip.compress(picture(3, (5, 4), "PNG"))),
        ],
    )
    batch = first_batch(tmp_path, decode=True)
    assert batch["npz"][0]["a"].tolist() == [0, 1, 2]
    assert batch["npz"][0]["b"].shape == (2, 2)
    assert batch["json.gz"] == [{"a": 1}]
    assert batch["cls.gz"].tolist() == [7]
    assert batch["raw.gz"] == [b"raw"]
    assert batch["png.gz"].shape == (1, 3, 4, 5)
    assert first_batch(tmp_path)["raw.gz"] == [gzip.compress(b"raw", mtime=0)]
    assert first_batch(tmp_path, decode={"raw.gz": len})["raw.gz"].tolist() == [23]
    assert first_batch(tmp_path, decode={"raw.gz": "bytes"})["raw.gz"] == [
        gzip.compress(b"raw", mtime=0)
    ]


def test_some_members_of_a_field_may_be_compressed(tmp_path: Path) -> None:
    members = [("0.json", b'{"a": 0}'), ("1.json.gz", gzip.compress(b'{"a": 1}'))]
    write_tar(tmp_path / "a.tar", members)
    fields = {"meta": "json;json.gz"}
    batch = first_batch(tmp_path, fields=fields, columns=["meta"], decode=True)
    assert batch["meta"] == [{"a": 0}, {"a": 1}]


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("npz", b"PK no zip", "npz"),
        ("npz", zipped(a=np.array([{}], object)), "allow_pickle"),
        ("json.gz", gzip.compress(b"{}", mtime=0)[:-6], "gzip"),
        ("pth", b"no zip", "pth"),
        ("pkl", b"\x80no pickle", "pkl"),
    ],
)
def test_damaged_containers_name_their_member(
    tmp_path: Path, name: str, data: bytes, why: str
) -> None:
    write_tar(tmp_path / "a.tar", [(f"0.{name}", data)])
    with pytest.raises(ReadError, match=rf"a\.tar, member '0\.{name}'.*{why}"):
        first_batch(tmp_path, decode=[name])


def test_pickles_are_loaded_only_if_they_are_named(tmp_path: Path) -> None:
    tensor = torch.arange(4)
    members = [("0.pth", packed(tensor)), ("0.pkl", pickle.dumps({"a": (1, 2)}))]
    write_tar(tmp_path / "a.tar", members)
    assert first_batch(tmp_path, decode=True)["pkl"] == [members[1][1]]
    assert first_batch(tmp_path, decode=True)["pth"] == [members[0][1]]
    batch = first_batch(tmp_path, decode={"pth": "pth", "pkl": "pkl"})
    assert torch.equal(batch["pth"], tensor[None])
    assert batch["pkl"] == [{"a": (1, 2)}]
    assert first_batch(tmp_path, decode=["pkl"])["pkl"] == [{"a": (1, 2)}]


def test_a_pth_with_code_is_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("0.pth", packed(text_length))])
    with pytest.raises(ReadError, match=r"a\.tar, member '0\.pth'"):
        first_batch(tmp_path, decode=["pth"])


def test_msgpack_and_cbor_by_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path / "a.tar", [("0.msgpack", b"\x81\xa1a\x01"), ("0.cbor", b"\x82\x01\x02")])
    monkeypatch.setitem(sys.modules, "msgpack", import_module("pip._vendor.msgpack"))
    assert first_batch(tmp_path, decode=["msgpack"])["msgpack"] == [{"a": 1}]
    for module, field in (("msgpack", "msgpack"), ("cbor2", "cbor")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=f"{field} fields.*pip install {module}"):
            first_batch(tmp_path, decode=[field])


def test_arrow_keeps_npy_and_text(folder: Path) -> None:
    batch = first_batch(folder, decode=True, output_format="arrow", batch_size=2)
    assert batch["npy"][1].as_py() == npy(np.full((2, 3), 1, np.float32))
    assert json.loads(batch["json"][0].as_py())["id"] == 0


@pytest.mark.parametrize(
    ("field", "data", "why"),
    [
        ("png", b"no picture", "image"),
        ("png", picture(1, (500, 500))[:200], "image"),
        ("png", huge_jpeg(30_000, 30_000), "30000 x 30000 pixels exceeds limit"),
        ("json", b"{", "."),
        ("json", b"\xff\xfe\xff", "."),
        ("cls", b"seven", "seven"),
        ("cls", b"9" * 30, "64 bits"),
        ("npy", b"\x93NUMPY\x01\x00", "npy"),
        ("npy", npy_with(b"{'descr': '<f8', 'shape': (3,"), "damaged"),
        ("npy", npy_with(b"{'descr': '<f8', 'fortran_order': False, 'shape': (True,)}"), "shape"),
        ("txt", b"\xff\xff", "utf-8"),
    ],
    ids=[
        "no image",
        "half an image",
        "huge image",
        "half json",
        "no text",
        "no number",
        "large",
        "npy",
        "half a header",
        "odd shape",
        "utf-8",
    ],
)
def test_what_does_not_decode_is_named(tmp_path: Path, field: str, data: bytes, why: str) -> None:
    members = dict(one for i in range(6) for one in sample(i)) | {f"000004.{field}": data}
    write_tar(tmp_path / "a.tar", members.items())
    _, dataset = TarDataset.create_dataloader(tmp_path, decode=True, num_workers=0)
    named = rf"a\.tar, member '000004\.{field}'.*{why}"
    with pytest.raises(ReadError, match=named):
        next(iter(dataset))
    with pytest.raises(ReadError, match=named):
        dataset.rows[4]
    assert len(dataset.rows[[0, 5]]["cls"]) == 2
    skipping = TarDataset(tmp_path, decode=True, on_error="skip").rows
    with pytest.warns(SkippedDataWarning, match=named):
        assert skipping.batch(range(6))["cls"].tolist() == [0, 1, 2, 3, 5]


def test_functions_that_raise_name_the_member(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("x.num", b"1"), ("y.num", b"z")])
    with pytest.raises(ReadError, match=r"a\.tar, member 'y\.num'.*'z'"):
        first_batch(tmp_path, decode={"num": as_number})


def confused(data: bytes) -> Any:
    raise TypeError("no such thing")


@pytest.mark.parametrize("workers", [0, 1])
def test_functions_that_are_wrong_are_not_skipped(tmp_path: Path, workers: int) -> None:
    write_tar(tmp_path / "a.tar", [("x.num", b"1"), ("y.num", b"z")])
    with pytest.raises(TypeError, match="no such thing") as raised:
        first_batch(tmp_path, decode={"num": confused}, on_error="skip", num_workers=workers)
    assert "a.tar, member 'x.num'" in raised.value.__notes__[0]


def test_functions_have_to_reach_workers(folder: Path) -> None:
    """Check that a lambda is sent by value, and that an object with a lock is refused."""
    lock = threading.Lock()
    for options in ({"num_workers": 1}, {"num_workers": 1, "multiprocessing_context": "spawn"}):
        batch = first_batch(folder, decode={"cls": lambda data: int(data) + 1}, **options)
        plain = first_batch(folder, decode={"cls": lambda data: int(data) + 1}, num_workers=0)
        assert batch["cls"].tolist() == plain["cls"].tolist()
        with pytest.raises(WorkerError, match=r"decode\['cls'\] cannot be sent"):
            first_batch(folder, decode={"cls": lambda data: lock and data}, **options)


def test_numbers_that_no_tensor_holds(tmp_path: Path) -> None:
    large = npy(np.array([2**63 + 1], np.uint64))
    write_tar(tmp_path / "a.tar", [("x.npy", npy(np.array([5], np.uint64))), ("y.npy", large)])
    with pytest.raises(
        ConversionError, match=r"a\.tar, rows 0-2: column 'npy'.*9223372036854775809"
    ):
        first_batch(tmp_path, decode=True)
    with pytest.raises(ConversionError, match="'npy'"):
        TarDataset(tmp_path, decode=True).rows[1]
    kept = first_batch(tmp_path, decode=True, output_format="numpy")["npy"]
    assert kept.tolist() == [[5], [2**63 + 1]]


def test_json_is_never_an_array(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("x.json", b"true"), ("y.json", b"2"), ("z.json", b"3")])
    for size in (1, 3):
        values = first_batch(tmp_path, decode=True, batch_size=size)["json"]
        assert values == [True, 2, 3][:size]
        assert values[0] is True


def test_missing_fields_of_what_is_decoded(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("x.png", picture(1, (4, 4))), ("x.cls", b"1"), ("y.cls", b"2")])
    batch = first_batch(tmp_path, decode=True, nulls={"png": None})
    assert batch["png"][0].shape == (3, 4, 4)
    assert batch["png"][1] is None
    row = TarDataset(tmp_path, decode=True, nulls={"png": None}).rows[1]
    assert row["png"] is None
    assert int(row["cls"]) == 2


def stored_text(row: dict[str, Any]) -> dict[str, Any]:
    return {"npy": row["txt"]}


@pytest.mark.parametrize("output_format", ["torch", "dict"])
def test_copies_of_rows_in_memory_are_decoded_alike(folder: Path, output_format: str) -> None:
    decode = {"npy": "npy", "cls": as_vector, "json": "json", "txt": "bytes"}
    dataset = TarDataset(folder, decode=decode, output_format=output_format)
    rows = dataset.rows.select_columns(["npy", "cls", "json", "txt"])
    expected = frozen(rows.batch([3, 1]))
    assert frozen(rows.flatten().batch([3, 1])) == expected
    assert frozen(rows[1:].flatten().select([2, 0]).batch([0, 1])) == expected
    more = rows.rename_column("npy", "array").add_column("one", [1] * len(rows))
    batch = more.batch([3, 1])
    assert frozen({"npy": batch.pop("array"), **batch}) == frozen(
        {**rows.batch([3, 1]), "one": batch["one"]}
    )
    replaced = rows.map(stored_text).batch([3, 1])
    assert list(replaced["npy"]) == ["ä 3".encode(), "ä 1".encode()]  # these are not arrays
    assert frozen({**replaced, "npy": None}) == frozen({**rows.batch([3, 1]), "npy": None})
