"""``TarDataset`` and the ways to open one: locations, rows by index, the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sample_tars import sample, write_samples, write_tar
from torch.utils.data import DataLoader

import headrace
from headrace import OptionError, StaleIndexError, StructuredDataset, TarDataset
from headrace.cli import main
from headrace.model import DataFileInfo
from headrace.sources.tar._json_index import json_index
from headrace.sources.tar.index import write_index
from headrace.sources.tar.scan import scan_tar
from headrace.storage import LocalStore

COUNTS = (6, 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("above") / "one" / "two", COUNTS)


def keys(dataset: Any) -> list[str]:
    return [key for batch in dataset for key in batch["__key__"]]


ALL = [f"{i:06d}" for i in range(sum(COUNTS))]


PLACES = ["directory", "above", "tar", "glob", "all of it", "braces", "list", "url"]


@pytest.mark.parametrize("where", PLACES)
def test_open_finds_tars(folder: Path, where: str) -> None:
    location: Any = {
        "directory": folder,
        "above": folder.parent.parent,
        "tar": folder / "shard_0000.tar",
        "glob": str(folder / "*.tar"),
        "all of it": str(folder / "*"),
        "braces": str(folder / "shard_{0000..0001}.tar"),
        "list": sorted(folder.iterdir()),
        "url": f"file://{folder}/shard_0001.tar",
    }[where]
    dataset = headrace.open(location, batch_size=4)
    assert isinstance(dataset, TarDataset)
    wanted = {"tar": ALL[:6], "url": ALL[6:]}.get(where, ALL)
    assert keys(dataset) == wanted
    assert dataset.format == "tar"


def test_open_says_what_is_to_be_opened_otherwise(folder: Path, tmp_path: Path) -> None:
    for name in ("a.tar.gz", "a.TGZ"):
        (tmp_path / name).write_bytes(b"no matter")
        with pytest.raises(OptionError, match="compressed as a whole"):
            headrace.open(tmp_path / name)
    with pytest.raises(OptionError, match="compressed as a whole"):
        headrace.open(tmp_path)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    shutil.copytree(folder, tmp_path / "below")
    assert headrace.open(tmp_path).schema.names == ["x"]
    with pytest.raises(OptionError, match=r"headrace\.TarDataset"):
        StructuredDataset(folder, format=None)


def test_what_it_is(folder: Path) -> None:
    dataset = TarDataset(folder, batch_size=4)
    assert repr(dataset) == (
        f"<TarDataset: 2 tar files of {folder}, 11 rows; 3 batches of 4; 1 lane; in order>"
    )
    assert dataset.num_rows == 11
    assert len(dataset) == 3
    assert dataset.schema.names[:3] == ["__key__", "__shard__", "png"]
    assert str(dataset.schema.field("png").type) == "large_binary"


def test_rows_are_map_style(folder: Path) -> None:
    rows = TarDataset(folder, columns=["__key__", "__shard__", "cls"], decode=["cls"]).rows
    assert rows[7] == {"__key__": ALL[7], "__shard__": "shard_0001.tar", "cls": torch.tensor(7)}
    loader = DataLoader(rows, batch_sampler=[[10, 0, 3], [1]], num_workers=1)
    assert [batch["cls"].tolist() for batch in loader] == [[0, 0, 3], [1]]
    assert rows.shuffle(3).batch(range(11))["__key__"] != ALL
    arrow = TarDataset(folder).rows.with_format("arrow")
    assert arrow.batch([2])["png"][0].as_py() == dict(sample(2))["000002.png"]


def test_indexes_elsewhere_and_stale_ones(folder: Path, tmp_path: Path) -> None:
    tars, indexes = tmp_path / "tars", tmp_path / "indexes"
    shutil.copytree(folder, tars)
    indexes.mkdir()
    for path in sorted(tars.iterdir()):
        index = scan_tar(LocalStore(), DataFileInfo(str(path), path.stat().st_size))
        (indexes / path.with_suffix(".json").name).write_bytes(json_index(index))
    assert keys(TarDataset(tars, metadata=indexes)) == ALL
    write_tar(tars / "shard_0001.tar", [("other.png", b"x" * 99_999)])
    with pytest.raises(StaleIndexError, match=r"shard_0001"):
        keys(TarDataset(tars, metadata=indexes))


def test_one_columnar_index_for_all(folder: Path, tmp_path: Path) -> None:
    indexes = [
        (path.name, scan_tar(LocalStore(), DataFileInfo(str(path), path.stat().st_size)))
        for path in sorted(folder.iterdir())
    ]
    write_index(str(tmp_path / "all.idx.arrow"), indexes)
    dataset = TarDataset(folder, metadata=tmp_path / "all.idx.arrow", batch_size=6)
    assert keys(dataset) == ALL


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"load_file_data": 1}, "load_file_data"),
        ({"max_file_size": -1}, "max_file_size"),
        ({"load_file_data": False, "decode": True}, "decode"),
        ({"key": "aspect"}, "bucketed"),
        ({"bucketed": "yes"}, "bucketed"),
        ({"bucketed": True, "mix": 4}, "mix"),
        ({"bucketed": True, "filters": [("cls", "==", 1)]}, "filters"),
    ],
    ids=["flag", "size", "decode", "key", "bucketed", "mix", "filters"],
)
def test_options_that_make_no_sense(folder: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        TarDataset.create_dataloader(folder, num_workers=0, **options)


def test_inspect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["files"], report["rows"]) == ("tar", 2, 11)
    assert [column["name"] for column in report["columns"]][2:] == [
        "png",
        "json",
        "cls",
        "npy",
        "txt",
    ]
    assert main(["inspect", str(folder / "shard_0000.tar"), "--format", "tar"]) == 0
    assert "rows        6" in capsys.readouterr().out
