"""``write_tar``: detection of the kind of a source, and the properties kept of other tars."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tars_written import samples, write

import headrace
from headrace import OptionError, TarShards, TarWriter
from headrace.sources.tar import write_captions
from headrace.write import write_tar


def test_tars_whose_keys_repeat(tmp_path: Path) -> None:
    for name in ("a/x", "b/x"):
        with TarWriter(tmp_path / "in" / name) as writer:
            for n in range(3):
                writer.write({"__key__": f"{n}", "txt": f"{name} {n}"})
    with pytest.raises(OptionError, match=r"comes twice .* keys=\"prefix\""):
        write_tar(tmp_path / "in", tmp_path / "out")
    write_tar(tmp_path / "in", tmp_path / "out", keys="number")  # no tar was complete
    assert len(samples(tmp_path / "out")) == 6
    write_tar(tmp_path / "in", tmp_path / "other", keys="prefix")
    found = samples(tmp_path / "other")
    assert list(found)[2:4] == ["a/x/shard_00000/2", "b/x/shard_00000/0"]
    assert found["b/x/shard_00000/1"] == {"txt": b"b/x 1"}


def test_tars_of_others(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "in.tar", "w") as tar:
        for name in ("./a.jpg", "./.hidden", "./dir/b.JPG", "./dir/b.Seg.png", "./a.txt"):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(name), 99
            tar.addfile(info, io.BytesIO(name.encode()))
    write_tar(tmp_path / "in.tar", tmp_path / "out")
    assert samples(tmp_path / "out") == {
        "a": {"jpg": b"./a.jpg", "txt": b"./a.txt"},
        "dir/b": {"JPG": b"./dir/b.JPG", "Seg.png": b"./dir/b.Seg.png"},
    }
    with tarfile.open(tmp_path / "out" / "shard_00000.tar") as tar:
        assert tar.getnames() == ["a.jpg", "a.txt", "dir/b.JPG", "dir/b.Seg.png"]
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("../../etc/evil.txt"))
    with pytest.raises(OptionError, match="leads out of the archive"):
        write_tar(tmp_path / "bad.tar", tmp_path / "evil")
    write_tar(tmp_path / "bad.tar", tmp_path / "good", keys="number")
    assert list(samples(tmp_path / "good")) == ["000000000"]


@pytest.mark.parametrize("name", ["x.array_record", "t.lance/data/x.lance"])
def test_what_is_opened_otherwise(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    with pytest.raises(OptionError, match=r"headrace\.open"):
        write_tar(tmp_path / name.partition("/")[0], tmp_path / "out")


def test_compressed_tars_are_told_of(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.txt"))
    with pytest.raises(headrace.HeadraceError, match="gz"):
        write_tar(tmp_path / "x.tar.gz", tmp_path / "out")


@pytest.mark.parametrize("old", ["json", "arrow"])
@pytest.mark.parametrize("index", ["json", "arrow"])
@pytest.mark.parametrize("sidecars", [True, False])
def test_captions_of_an_index_are_taken_along(
    tmp_path: Path, old: str, index: str, sidecars: bool
) -> None:
    """Check that the captions of an index that was written into are kept."""
    given: list[dict[str, Any]] = [{"__key__": f"{n}", "jpg": b"a", "txt": "own"} for n in range(3)]
    del given[2]["txt"]
    shards = write(tmp_path / "in", given, shard_samples=2, index=old).shards
    write_captions(tmp_path / "in" / shards[0]["index"], {"1": ["by", "hand"]})
    write_captions(tmp_path / "in" / shards[1]["index"], {"2": "é"})
    write_tar(tmp_path / "in", tmp_path / "out", index=index, sidecars=sidecars, keys="number")
    copied = TarShards(tmp_path / "out")
    assert [copied.load_sample(0, n).captions for n in range(3)] == ["own", ["by", "hand"], "é"]


def test_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / os.fsdecode(b"in/\xff.jpg")).write_bytes(b"")
    with pytest.raises(OptionError, match="cannot be encoded as UTF-8"):
        write_tar(tmp_path / "in", tmp_path / "out")
    assert os.listdir(tmp_path) == ["in"]


def test_captions_that_no_index_would_hold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "in", [{"__key__": "a", "jpg": b""}, {"__key__": "b", "jpg": b""}])
    write_captions(tmp_path / "in" / "shard_00000.idx.arrow", {"b": "by hand"})
    write_tar(tmp_path / "in", tmp_path / "out", index=None)
    assert "1 captions" in caplog.text


def test_files_that_could_be_tables(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        (tmp_path / "in" / f"{name}.json").write_text("{}")
    with pytest.raises(OptionError, match=r"no column .* format=\"folder\""):
        write_tar(tmp_path / "in", tmp_path / "out")
    write_tar(tmp_path / "in", tmp_path / "out", format="folder")
    assert samples(tmp_path / "out") == {"a": {"json": b"{}"}, "b": {"json": b"{}"}}


def test_keys_are_spoken_of_where_they_are_to_blame(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.JPG", "a.jpg"):
        (tmp_path / "in" / name).write_text("")
    with pytest.raises(OptionError, match=r"would be one field; rename one$"):
        write_tar(tmp_path / "in", tmp_path / "out")
    rows = pa.table({"__key__": ["a.b"], "txt": ["x"]})
    with pytest.raises(OptionError, match=r'by _ say; or give keys="number" for new keys$'):
        write_tar(rows, tmp_path / "out")
    with tarfile.open(tmp_path / "twice.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
        tar.addfile(tarfile.TarInfo("a.jpg"))
    with pytest.raises(OptionError, match=r'twice.* keys="number" for new keys$'):
        write_tar(tmp_path / "twice.tar", tmp_path / "out", keys="prefix")
