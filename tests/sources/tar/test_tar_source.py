"""Samples of tars by their number: fields, what is missing, what is refused."""

from __future__ import annotations

import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sample_tars import SIZES, sample, write_samples, write_tar

from headrace.access import Backend, RowDataset, TarBackend
from headrace.errors import (
    ConversionError,
    FileChangedError,
    NothingFoundError,
    OptionError,
    ReadError,
    SchemaError,
    SkippedDataWarning,
)
from headrace.model import DataFileInfo
from headrace.sources.tar.index import write_index
from headrace.sources.tar.scan import scan_tar
from headrace.storage import LocalStore
from headrace.testing import BackendContract

COUNTS = (7, 0, 11, 5)


def text(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


class TestTarBackend(BackendContract):
    @classmethod
    def expected(cls) -> pa.Table:
        rows = super().expected()
        keys = [f"sub/{i:05d}" for i in range(cls.rows)]
        shards = [f"{i // 400}.tar" for i in range(cls.rows)]
        table = pa.table({"__key__": keys, "__shard__": shards})
        for name in ("id", "label", "name", "data"):
            table = table.append_column(name, rows[name])
        return table

    @classmethod
    def write(cls, directory: Path, table: pa.Table) -> None:
        for shard, start in enumerate(range(0, cls.rows, 400)):
            rows = table.slice(start, 400).to_pylist()
            members = [
                (f"{row['__key__']}.{name}", text(row[name]))
                for row in rows
                for name in ("id", "label", "name", "data")
            ]
            write_tar(directory / f"{shard}.tar", members)

    @classmethod
    def open(cls, directory: Path) -> Backend:
        return TarBackend(directory, decode={"id": "int", "label": "int", "name": "text"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("tars"), COUNTS)


def test_fields_are_columns_of_bytes(folder: Path) -> None:
    backend = TarBackend(folder)
    names = ["__key__", "__shard__", "png", "json", "cls", "npy", "txt"]
    assert backend.schema.names == names
    assert backend.shard_rows.tolist() == list(COUNTS)
    row = backend.get_row(-1)
    members = dict(sample(22))
    assert row == {
        "__key__": "000022",
        "__shard__": "shard_0003.tar",
        **{name: members[f"000022.{name}"] for name in names[2:]},
    }


def test_what_a_sample_does_not_have_is_null(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("a.jpg", b"a"), ("a.seg.png", b"s"), ("b.jpg", b"b")])
    write_tar(tmp_path / "b.tar", [("d/c.jpg", b"c"), ("d/c.CLS", b"7"), ("c.jpg", b"")])
    table = TarBackend(tmp_path, decode=["cls"]).table
    assert table.schema.names == ["__key__", "__shard__", "jpg", "seg.png", "cls"]
    assert table["__key__"].to_pylist() == ["a", "b", "d/c", "c"]
    assert table["jpg"].to_pylist() == [b"a", b"b", b"c", b""]
    assert table["seg.png"].to_pylist() == [b"s", None, None, None]
    assert table["cls"].to_pylist() == [None, None, 7, None]
    rows = RowDataset(TarBackend(tmp_path), columns=["jpg", "seg.png"])
    with pytest.raises(ConversionError, match=r"'seg.png'.*null"):
        rows.batch([0, 1])


def test_columns_that_are_not_asked_for_are_not_read(folder: Path, tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", sample(1))
    backend = TarBackend(path)
    assert backend.num_rows == 1
    path.unlink()
    assert backend.get_row(0, columns=["__key__"]) == {"__key__": "000001"}
    with pytest.raises(FileChangedError, match=r"a\.tar"):
        backend.get_row(0)


def test_a_tar_that_is_cut_is_an_error(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.bin", b"x" * 100_000), ("b.bin", b"y" * 100_000)])
    backend = TarBackend(path)
    assert backend.get_row(0)["bin"] == b"x" * 100_000
    with open(path, "r+b") as file:
        file.truncate(50_000)
    with pytest.raises(FileChangedError, match=r"a\.tar"):
        backend.get_row(1)


def write_huge(path: Path) -> None:
    """A tar of 10 GB that takes no place on the disk."""
    large, small = tarfile.TarInfo("large.bin"), tarfile.TarInfo("small.bin")
    large.size, small.size = 10 << 30, 3
    with open(path, "wb") as file:
        file.write(large.tobuf(tarfile.GNU_FORMAT))
        file.seek(large.size, 1)
        file.write(small.tobuf() + b"abc".ljust(512, b"\0") + bytes(1024))


def test_members_that_are_too_large_are_not_read(tmp_path: Path) -> None:
    write_huge(tmp_path / "a.tar")
    backend = TarBackend(tmp_path, max_file_size="1MiB")
    assert backend.get_row(1)["bin"] == b"abc"
    for read in (lambda: backend.take([1, 0]), lambda: list(backend.iter_batches())):
        with pytest.raises(ReadError, match=r"a\.tar.*large\.bin.*max_file_size=1,048,576"):
            read()
    assert backend.get_row(0, columns=["__key__"]) == {"__key__": "large"}
    rows = RowDataset(backend, on_error="skip")
    with pytest.warns(SkippedDataWarning, match=r"large\.bin"):
        assert rows.batch([0, 1])["bin"] == [b"abc"]
    assert rows.skipped == 1


def index_beside(tar: Path, geometry: bool) -> None:
    file = DataFileInfo(str(tar), tar.stat().st_size)
    index = scan_tar(LocalStore(), file, geometry=geometry)
    write_index(str(tar.with_suffix(".idx.arrow")), [(tar.name, index)])


def test_metadata_alone(tmp_path: Path) -> None:
    write_samples(tmp_path, [5])
    index_beside(tmp_path / "shard_0000.tar", geometry=True)
    backend = TarBackend(tmp_path, load_file_data=False)
    with tarfile.open(tmp_path / "shard_0000.tar") as tar:
        places = [(one.offset_data, one.size) for one in tar if one.name.endswith(".png")]
    rows = backend.table.to_pylist()
    assert [row["path"] for row in rows] == [f"{i:06d}.png" for i in range(5)]
    assert [(row["offset"], row["size"]) for row in rows] == places
    assert [(row["width"], row["height"]) for row in rows] == [*SIZES, SIZES[0]]
    assert [row["aspect"] for row in rows] == pytest.approx([w / h for w, h in [*SIZES, SIZES[0]]])
    assert '"id": 3' in rows[3]["json"]
    (tmp_path / "shard_0000.tar").unlink()
    assert backend.get_row(2)["__key__"] == "000002"
    with pytest.raises(OptionError, match="load_file_data"):
        TarBackend(tmp_path, load_file_data=False, decode=True)


def test_metadata_of_which_nothing_is_known(folder: Path) -> None:
    row = TarBackend(folder, load_file_data=False).get_row(3)
    assert (row["width"], row["height"], row["captions"]) == (0, 0, [])
    assert np.isnan(row["aspect"])


@pytest.mark.parametrize(
    ("decode", "error", "why"),
    [
        (["jpg"], SchemaError, r"jpg.*png, json"),
        (["bin"], OptionError, "extension"),
        ({"png": "picture"}, OptionError, r"picture.*image"),
        ({"seg": len}, SchemaError, "seg"),
        ([3], OptionError, "3"),
    ],
    ids=["absent", "unknown", "how", "function", "number"],
)
def test_wrong_decoding(folder: Path, decode: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        _ = TarBackend(folder, decode=decode).schema


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(NothingFoundError):
        TarBackend(tmp_path)
    with pytest.raises(OptionError, match="max_file_size"):
        TarBackend(write_tar(tmp_path / "a.tar", sample(0)), max_file_size="much")


def test_broken_tars_are_left_out_if_they_may_be(tmp_path: Path) -> None:
    write_samples(tmp_path, [3, 3])
    (tmp_path / "damaged.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(ReadError, match=r"damaged\.tar"):
        _ = TarBackend(tmp_path).num_rows
    backend = TarBackend(tmp_path, on_error="skip")
    assert backend.num_rows == 6
    assert "damaged.tar" in "".join(backend.broken)


def test_names_are_never_paths(tmp_path: Path) -> None:
    """They may say what they like: nothing is written by them, and all can be read."""
    names = ["../../evil.txt", "/abs/evil.txt", "a/../b.txt", "..hidden/x.txt"]
    write_tar(tmp_path / "t" / "a.tar", [(name, name.encode()) for name in names])
    backend = TarBackend(tmp_path / "t")
    assert sorted(backend.table["txt"].to_pylist()) == sorted(name.encode() for name in names)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.tar"]


def test_it_is_small_on_its_way_and_says_what_it_reads(folder: Path) -> None:
    backend = TarBackend(folder, decode=True)
    wanted = backend.take([3, 20])
    copied = pickle.loads(pickle.dumps(backend))
    assert copied.take([3, 20]).equals(wanted)
    assert str(folder) in backend.locations
    assert backend.fork_safe


def test_takes_over_http_are_joined(http_server: Any, folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("*.tar"):
        http_server.put(f"/tars/{path.name}", path.read_bytes())
    urls = [f"{http_server.url}/tars/shard_{i:04d}.tar" for i in (0, 2, 3)]
    backend = TarBackend(urls, cache_dir=tmp_path)
    rows = np.random.default_rng(3).permutation(backend.num_rows)
    expected = TarBackend(folder).take(rows)
    before = len(http_server.log)
    assert (
        backend.take(rows).drop_columns(["__shard__"]).equals(expected.drop_columns(["__shard__"]))
    )
    assert len(http_server.log) - before <= 6
    assert not backend.fork_safe


@pytest.mark.parametrize("change", ["cut", "written again"])
def test_a_tar_that_changes_while_it_is_decoded(tmp_path: Path, change: str) -> None:
    """What was read is right, and nothing else is read."""
    path = tmp_path / "a.tar"
    write_tar(path, [(f"{i}.bin", b"%03d" % i * 2000) for i in range(40)])

    def decoded(data: bytes) -> str:
        if data.startswith(b"002") and change == "cut":
            os.truncate(path, 1024)
        elif data.startswith(b"002"):
            path.write_bytes(b"X" * path.stat().st_size)
            os.utime(path, ns=(0, 12345))
        return data[-3:].decode()

    backend = TarBackend(path, decode={"bin": decoded})
    rows = RowDataset(backend, columns=["bin"])
    assert rows[list(range(40))] == {"bin": [f"{i:03d}" for i in range(40)]}
    with pytest.raises(FileChangedError, match=r"a\.tar .* after it was discovered"):
        rows[[7]]
