"""``TarWriter`` over existing tars: resuming, replacing, and one writer at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tars_written import members, numbered, write

from headrace import OptionError, StaleIndexError, TarShards, TarWriter, WriteError


def test_what_is_not_whole_is_not_there(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    samples = numbered(25)
    write(whole, samples, shard_samples=10)

    def breaking_off() -> Iterator[dict[str, Any]]:
        yield from samples[:17]
        raise KeyError

    with pytest.raises(KeyError):
        write(cut, breaking_off(), shard_samples=10)
    assert sorted(os.listdir(cut)) == ["shard_00000.idx.arrow", "shard_00000.tar"]
    (cut / "shard_00001.tar.partial").write_bytes(b"of a run that was killed")
    (cut / "shard_00001.idx.arrow").write_bytes(b"of the same")
    (cut / "mine.partial").write_bytes(b"of somebody else")
    with pytest.raises(OptionError, match=r"holds shard_00000\.tar; give resume=True"):
        write(cut, samples)
    with TarWriter(cut, shard_samples=10, resume=True) as writer:
        assert writer.samples_written == 10
        for sample in samples[writer.samples_written :]:
            writer.write(sample)
        assert writer.samples_written == 25
    assert {*os.listdir(cut)} == {*os.listdir(whole), "mine.partial"}
    for name in os.listdir(whole):
        assert (whole / name).read_bytes() == (cut / name).read_bytes()


@pytest.mark.parametrize("old", ["json", "arrow", None])
@pytest.mark.parametrize("index", ["json", "arrow", None])
def test_samples_that_are_there_are_counted(
    tmp_path: Path, old: str | None, index: str | None
) -> None:
    written = write(tmp_path, numbered(25), shard_samples=10, index=old).shards
    with TarWriter(tmp_path, resume=True, index=index) as writer:
        assert [shard["samples"] for shard in writer.shards] == [10, 10, 5]
        assert writer.samples_written == 25
        assert writer.shards == written


def test_samples_that_readers_leave_out_are_counted(tmp_path: Path) -> None:
    """Count samples that readers skip: otherwise a writer that resumes would repeat others."""
    write(tmp_path, [{"__key__": "__info__", "json": {}}, {"__key__": "a", "txt": "a"}])
    with TarWriter(tmp_path, resume=True) as writer:
        assert writer.samples_written == 2


@pytest.mark.parametrize("old", ["json", "arrow"])
def test_resuming_behind_what_is_damaged(tmp_path: Path, old: str) -> None:
    """Cut a tar between two members, which its index alone can tell, in whichever form it is."""
    write(tmp_path, numbered(25), shard_samples=10, index=old)
    os.truncate(tmp_path / "shard_00002.tar", 1024)
    with pytest.raises(StaleIndexError, match="shard_00002"):
        TarWriter(tmp_path, resume=True).write({"__key__": "x", "bin": b""})
    (tmp_path / "shard_00001.tar").unlink()
    with pytest.raises(OptionError, match=r"holds shard_00002\.tar but lacks shard_00001\.tar"):
        TarWriter(tmp_path, resume=True).write({"__key__": "x", "bin": b""})
    write(tmp_path, numbered(5), overwrite=True)
    ending = {"json": ".json", "arrow": ".idx.arrow"}[old]
    assert sorted(os.listdir(tmp_path)) == [
        *("shard_00000.idx.arrow", "shard_00000.tar", f"shard_00001{ending}")
    ]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with TarWriter(tmp_path) as writer:
        writer.write({"__key__": "a", "bin": b""})
        with pytest.raises(WriteError, match="another process is working"):
            TarWriter(tmp_path).write({"__key__": "b", "bin": b""})
    with pytest.raises(OptionError, match="is closed"):
        writer.write({"__key__": "c", "bin": b""})
    assert list(members(tmp_path / "shard_00000.tar")) == ["a.bin"]


def test_looking_at_a_writer_writes_nothing(tmp_path: Path) -> None:
    writer = TarWriter(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    writer.close()
    assert not (tmp_path / "new").exists()


def test_no_room(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot be written"):
        TarWriter(tmp_path / "file" / "below").write({"__key__": "a", "bin": b""})
    with TarWriter(tmp_path / "full") as writer:
        writer.write({"__key__": "a", "bin": b""})
        (tmp_path / "full" / "shard_00000.idx.arrow").mkdir()
        with pytest.raises(WriteError, match=r"shard_00000\.idx\.arrow cannot be written"):
            writer.close()
    assert not (tmp_path / "full" / "shard_00000.tar").exists()
    (tmp_path / "full" / "shard_00000.idx.arrow").rmdir()
    write(tmp_path / "full", numbered(1))
    assert sorted(os.listdir(tmp_path / "full")) == ["shard_00000.idx.arrow", "shard_00000.tar"]


@pytest.mark.parametrize("old", ["json", "arrow", None])
@pytest.mark.parametrize("new", ["json", "arrow", None])
def test_what_is_replaced_leaves_no_index(tmp_path: Path, old: str | None, new: str | None) -> None:
    write(tmp_path / "in", numbered(3), shard_samples=1, index=old)
    samples = [{"__key__": key, "txt": "new", "json": {"n": key}} for key in "abc"]
    write(tmp_path / "in", samples, index=new, overwrite=True)
    write(tmp_path / "fresh", samples, index=new)
    assert sorted(os.listdir(tmp_path / "in")) == sorted(os.listdir(tmp_path / "fresh"))
    shards = TarShards(tmp_path / "in")
    assert [shards.load_sample(0, n).json for n in range(3)] == [{"n": key} for key in "abc"]
    assert shards.get_shard_sample_count(0) == 3


@pytest.mark.parametrize("killed", ["json", "arrow"])
@pytest.mark.parametrize("index", ["json", "arrow", None])
def test_an_index_that_a_kill_left_is_not_read(
    tmp_path: Path, killed: str, index: str | None
) -> None:
    """Kill between the index and its tar; the next run may write an index of another form."""
    write(tmp_path, [{"__key__": "a", "txt": "old", "json": {"n": 0}}], index=killed)
    (tmp_path / "shard_00000.tar").unlink()
    samples = [{"__key__": key, "txt": "new", "json": {"n": key}} for key in "ab"]
    write(tmp_path, samples, index=index, resume=True)
    assert TarShards(tmp_path).get_shard_sample_count(0) == 2
    assert TarShards(tmp_path).load_sample(0, 0).json == {"n": "a"}
    assert len(os.listdir(tmp_path)) == (1 if index is None else 2)


def test_what_a_kill_left_of_indices_is_removed(tmp_path: Path) -> None:
    write(tmp_path, numbered(1))
    for name in ("shard_00001.idx.arrow", "shard_00001.json", "shard_00001.tar", "mine.json"):
        (tmp_path / f"{name}.partial").write_bytes(b"")
    (tmp_path / "shard_00001.json.before.partial").write_bytes(b"of somebody else")
    write(tmp_path, [], resume=True)
    assert sorted(path.name for path in tmp_path.glob("*.partial")) == [
        "mine.json.partial",
        "shard_00001.json.before.partial",
    ]


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}], ids=str)
def test_numbers_with_other_digits(tmp_path: Path, options: dict[str, Any]) -> None:
    write(tmp_path, numbered(12), shard_samples=1, pattern="s_{}.tar")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(OptionError, match=r"holds s_0\.tar, which .*s_\{:03d\}\.tar.* s_000\.tar"):
        write(tmp_path, numbered(1), pattern="s_{:03d}.tar", **options)
    assert sorted(os.listdir(tmp_path)) == before
