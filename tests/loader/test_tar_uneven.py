"""Real-world tars: samples with differing fields, files without a sample, names with dots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sample_tars import picture, write_tar

from headrace import OptionError, ReadError, SchemaError, TarDataset
from headrace.access import TarBackend
from headrace.sources.tar import index_tars

PNG, JPG = picture(1, (6, 4), "PNG"), picture(2, (6, 4), "JPEG")
UNEVEN = [
    ("LICENSE", b"free"),
    ("__info__.json", b"{}"),
    ("a.jpg", JPG),
    ("a.cls", b"3"),
    ("a.txt", b"first"),
    ("b.png", PNG),
    ("b.json", json.dumps({"captions": ["second", "other"]}).encode()),
    ("c.jpg", JPG),
    ("c.cls", b"5"),
    ("d.webp", picture(3, (6, 4), "WEBP")),
    ("d.cls", b"7"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tar(tmp_path / "0.tar", UNEVEN[:7])
    write_tar(tmp_path / "1.tar", UNEVEN[7:])
    return tmp_path


def loaded(source: Path, **options: Any) -> Any:
    loader, _ = TarDataset.create_dataloader(source, **{"num_workers": 0, **options})
    (batch,) = loader
    return batch


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("output_format", ["torch", "numpy"])
def test_a_field_that_a_sample_lacks_is_none(
    folder: Path, output_format: str, workers: int
) -> None:
    options: dict[str, Any] = {"output_format": output_format, "num_workers": workers}
    batch = loaded(folder, **options)
    assert list(batch["__key__"]) == ["a", "b", "c", "d"]
    assert list(batch["cls"]) == [b"3", None, b"5", b"7"]
    assert list(batch["jpg"]) == [JPG, None, JPG, None]
    decoded = loaded(folder, decode=True, **options)
    assert list(decoded["cls"]) == [3, None, 5, 7]
    assert decoded["jpg"][1] is None
    assert decoded["jpg"][0].shape == (3, 4, 6)
    assert list(decoded["txt"]) == ["first", None, None, None]
    assert decoded["json"][1] == {"captions": ["second", "other"]}


def test_rows_by_index_have_none_as_well(folder: Path) -> None:
    rows = TarDataset(folder, decode=True).rows
    assert rows[1]["cls"] is None
    assert rows[0]["cls"] == 3
    assert rows[1]["jpg"] is None


def test_a_field_that_a_sample_lacks_is_what_nulls_says(folder: Path) -> None:
    batch = loaded(folder, decode=True, columns=["cls"], nulls={"cls": -1})
    assert batch["cls"].tolist() == [3, -1, 5, 7]
    batch = loaded(folder, decode=True, columns=["cls", "txt"], nulls="mask")
    assert batch["cls_mask"].tolist() == [False, True, False, False]
    assert batch["txt_mask"].tolist() == [False, True, True, True]


def test_fields_that_all_samples_have_are_tensors(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", [("a.cls", b"1"), ("b.cls", b"2"), ("b.txt", b"x")])
    assert torch.equal(loaded(tmp_path, decode=True)["cls"], torch.tensor([1, 2]))


def test_samples_that_lack_a_field_are_left_out_and_counted(folder: Path) -> None:
    options: dict[str, Any] = {"missing_fields": "skip", "columns": ["__key__", "cls"]}
    loader, dataset = TarDataset.create_dataloader(folder, decode=True, num_workers=0, **options)
    (batch,) = loader
    assert batch["__key__"] == ["a", "c", "d"]
    assert batch["cls"].tolist() == [3, 5, 7]
    assert dataset.num_rows == len(dataset.rows) == 3
    assert dataset.rows[1]["__key__"] == "c"
    assert dataset.left_out == (2, 1, 0)
    both = TarDataset(folder, **{**options, "columns": ["jpg", "cls"]})
    assert (both.num_rows, both.left_out.incomplete) == (2, 2)
    with pytest.raises(SchemaError, match="no column 'mp4'"):
        TarDataset(folder, missing_fields="skip", columns=["mp4"])


def test_all_fields_are_required_unless_some_are_named(tmp_path: Path) -> None:
    members = [("a.jpg", JPG), ("b.jpg", JPG), ("b.txt", b"x"), ("c.jpg", JPG), ("c.txt", b"y")]
    write_tar(tmp_path / "0.tar", members)
    assert TarDataset(tmp_path, missing_fields="skip").num_rows == 2
    named = TarDataset(tmp_path, missing_fields="skip", fields={"image": "png;jpg"})
    assert named.num_rows == 3


def test_files_of_no_sample_are_left_out_and_counted(folder: Path) -> None:
    dataset = TarDataset(folder)
    assert dataset.num_rows == 4
    assert (dataset.left_out.files, dataset.left_out.incomplete) == (2, 0)
    assert "__data__" not in dataset.backend.schema.names


def test_large_members_keep_samples_out(folder: Path) -> None:
    limit = max(len(JPG), len(PNG)) - 1
    options: dict[str, Any] = {"max_file_size": limit, "columns": ["__key__", "jpg"]}
    with pytest.raises(ReadError, match=f"max_file_size={limit}.*oversized"):
        loaded(folder, **options)
    dataset = TarDataset(folder, oversized="skip", **options)
    small = [row["__key__"] for row in dataset.rows]
    assert 0 < len(small) < 4
    assert dataset.left_out.oversized == 4 - len(small)
    assert loaded(folder, oversized="skip", **options)["__key__"] == small


# --- fields by name


def test_fields_by_alternatives(folder: Path) -> None:
    fields = {"image": "jpg; .png;WEBP", "label": "cls"}
    batch = loaded(folder, fields=fields, decode=True, nulls={"label": -1})
    assert list(batch) == ["__key__", "__shard__", "image", "label"]
    assert batch["image"].shape == (4, 3, 4, 6)
    assert batch["label"].tolist() == [3, -1, 5, 7]
    plain = loaded(folder, fields=fields, columns=["label", "image", "txt"])
    assert plain["image"][:2] == [JPG, PNG]
    assert plain["txt"][0] == b"first"
    pixels = loaded(folder, fields=fields, decode={"image": "pixels"}, columns=["image"])
    assert pixels["image"].shape == (4, 3, 4, 6)


@pytest.mark.parametrize("indexed", [False, True])
def test_an_image_and_a_caption_need_not_be_declared(folder: Path, indexed: bool) -> None:
    if indexed:
        index_tars(folder, format="arrow")
    batch = loaded(folder, columns=["image", "caption"], decode=True)
    assert batch["image"].shape == (4, 3, 4, 6)
    assert batch["caption"] == ["first", "second", None, None]
    assert loaded(folder, columns=["image"])["image"][1] == PNG
    assert TarBackend(folder).get_row(1, columns=["caption"]) == {"caption": "second"}
    assert TarDataset(folder, columns=["image"], missing_fields="skip").num_rows == 4


def test_fields_of_those_names_are_themselves(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", [("a.caption", b"own"), ("a.image", b"raw"), ("a.jpg", JPG)])
    batch = loaded(tmp_path)
    assert (batch["caption"], batch["image"]) == ([b"own"], [b"raw"])


@pytest.mark.parametrize(
    ("fields", "error", "why"),
    [
        (
            {"image": "bmp;tif"},
            SchemaError,
            "no sample has a member with these extensions; there are jpg",
        ),
        ({"image": ""}, OptionError, "separated by semicolons"),
        ({"image": ["jpg"]}, OptionError, "separated by semicolons"),
    ],
)
def test_fields_that_cannot_be(folder: Path, fields: Any, error: type, why: str) -> None:
    with pytest.raises(error, match=why):
        TarDataset(folder, fields=fields)


# --- keys


def dotted(count: int) -> list[tuple[str, bytes]]:
    names = [f"IMG_2023.001.{number:05}" for number in range(count)]
    return [(f"{name}.{end}", name.encode()) for name in names for end in ("jpg", "txt")]


def test_names_with_dots_would_be_one_row_of_thousands_of_columns(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", dotted(200))
    with pytest.raises(
        SchemaError, match=r'1 samples would have 400 fields.*sample_key="last-dot"'
    ):
        TarDataset(tmp_path)
    loader, dataset = TarDataset.create_dataloader(
        tmp_path, sample_key="last-dot", decode=True, columns=["__key__", "txt"], num_workers=0
    )
    keys = [f"IMG_2023.001.{number:05}" for number in range(200)]
    assert [key for batch in loader for key in batch["__key__"]] == keys
    assert dataset.rows[7]["txt"] == keys[7]


def key_of(name: str) -> str | None:
    return name.rpartition("/")[2].partition(".")[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_keys_by_a_function(tmp_path: Path, workers: int) -> None:
    members = [("images/1.jpg", JPG), ("labels/1.cls", b"4"), ("images/2.jpg", JPG)]
    write_tar(tmp_path / "0.tar", [*members, ("labels/2.cls", b"5")])
    batch = loaded(tmp_path, sample_key=key_of, decode=True, num_workers=workers)
    assert batch["cls"].tolist() == [4, 5]
    assert np.array_equal(batch["__key__"], ["1", "2"])
