"""Stores: fsspec's, what is missing, and files that are no longer the ones that were found."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import (
    FileChangedError,
    MissingExtraError,
    NothingFoundError,
    OptionError,
    ReadError,
)
from headrace.model import DataFileInfo
from headrace.storage import LocalStore, find_files, store_for


def found(path: Any) -> list[str]:
    return [file.path for file in find_files(path).files]


def test_files_of_fsspec_are_listed_globbed_and_opened(memory: Any) -> None:
    for name in ("a.parquet", "d/b.parquet", "d/_SUCCESS", "d/.x.parquet", "_k=1/c.parquet"):
        memory.pipe(f"/bucket/{name}", name.encode())
    everything = [
        "memory://bucket/_k=1/c.parquet",
        "memory://bucket/a.parquet",
        "memory://bucket/d/b.parquet",
    ]
    assert found("memory://bucket") == everything
    assert found("memory://bucket/") == everything
    assert found("memory:///bucket") == everything
    assert found("memory://bucket/**/*.parquet") == everything
    assert found("memory://bucket/*.parquet") == everything[1:2]
    assert found("memory://bucket/d/[ab].parquet") == everything[2:]
    assert found(["memory://bucket/d", "memory://bucket/a.parquet"]) == everything[1:]
    assert found("memory://bucket/d/_SUCCESS") == ["memory://bucket/d/_SUCCESS"]

    listing = find_files("memory://bucket/a.parquet")
    (file,) = listing.files
    assert (file.file_size, listing.roots) == (9, ["memory://bucket"])
    with listing.store.open(DataFileInfo(file.path)) as stream:
        assert stream.read_at(3, 2) == b"par"
        assert stream.size() == 9


def test_a_name_that_exists_is_literal_in_fsspec_too(memory: Any) -> None:
    memory.pipe("/b/part[0].parquet", b"x")
    memory.pipe("/b/part0.parquet", b"y")
    assert found("memory://b/part[0].parquet") == ["memory://b/part[0].parquet"]
    assert found("memory://b/part[01].parquet") == ["memory://b/part0.parquet"]


@pytest.mark.parametrize("location", ["memory://none", "memory://none/*.parquet"])
def test_nothing_found_in_fsspec(memory: Any, location: str) -> None:
    with pytest.raises(NothingFoundError, match=location.replace("*", r"\*")):
        find_files(location)


def test_stores_pickle(memory: Any) -> None:
    memory.pipe("/b/a.parquet", b"0123456789")
    copy = pickle.loads(pickle.dumps(store_for("memory://b")))
    with copy.open(DataFileInfo("memory://b/a.parquet")) as stream:
        assert stream.read() == b"0123456789"
    assert pickle.loads(pickle.dumps(LocalStore())) == LocalStore()


def test_options_of_a_store_are_not_shown() -> None:
    assert "hunter2" not in repr(store_for("memory://a", {"secret": "hunter2"}))


@pytest.mark.parametrize("url", ["s3://", "s3:///a.parquet", "gs://", "az:// "])
def test_urls_without_a_bucket_are_refused(url: str) -> None:
    with pytest.raises(OptionError, match="names no bucket or container"):
        store_for(url)


def test_paths_in_different_stores_are_refused(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/a.parquet", b"x")
    (tmp_path / "b.parquet").write_text("x")
    with pytest.raises(OptionError, match=r"different stores.*b\.parquet.*memory://a\.parquet"):
        find_files(["memory://a.parquet", tmp_path / "b.parquet"])


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(
        OptionError, match=r"filesystem for nosuch:// cannot be made: .*Protocol not known"
    ):
        find_files("nosuch://bucket/a.parquet")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dropboxdrivefs", None)
    with pytest.raises(MissingExtraError, match="reading dropbox:// needs another package: "):
        find_files("dropbox://bucket/a.parquet")


def test_a_missing_extra_is_an_import_error() -> None:
    assert issubclass(MissingExtraError, ImportError)


@pytest.mark.parametrize("url", ["/data/a", "a", "file:///a", "local://a"])
def test_plain_paths_are_local(url: str) -> None:
    assert store_for(url) == LocalStore()


def test_only_what_survives_a_fork_says_so() -> None:
    assert LocalStore().fork_safe
    assert store_for("memory://x").fork_safe
    assert not store_for("s3://bucket", {"anon": True}).fork_safe


def pinned(path: Path) -> DataFileInfo:
    (file,) = find_files(path).files
    return file


def test_a_file_that_is_as_it_was_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"0123456789")
    with LocalStore().open(pinned(path)) as stream:
        assert stream.read_at(3, 4) == b"456"
    with LocalStore().open(DataFileInfo(str(path))) as stream:
        assert stream.size() == 10


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"0123456789")
    file = pinned(path)
    path.write_bytes(b"01234")
    with pytest.raises(FileChangedError, match=r"a\.parquet changed.*10 bytes then, 5 now"):
        LocalStore().open(file)


def test_a_file_written_again_with_the_same_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"0123456789")
    file = pinned(path)
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    with pytest.raises(FileChangedError, match=r"a\.parquet was written again"):
        LocalStore().open(file)


@pytest.mark.parametrize("replacement", ["nothing", "directory", "dangling link"])
def test_a_file_that_vanished_is_refused(tmp_path: Path, replacement: str) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"0123456789")
    file = pinned(path)
    path.unlink()
    if replacement == "directory":
        path.mkdir()
    elif replacement == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileChangedError, match=r"a\.parquet vanished") as caught:
        LocalStore().open(file)
    assert isinstance(caught.value, ReadError)


def test_files_of_fsspec_are_pinned_too(memory: Any) -> None:
    memory.pipe("/b/a.parquet", b"0123456789")
    (file,) = find_files("memory://b").files
    with store_for(file.path).open(file) as stream:
        assert stream.read() == b"0123456789"
    store = store_for(file.path)
    memory.pipe("/b/a.parquet", b"9876543210")
    with pytest.raises(FileChangedError, match=r"memory://b/a\.parquet was written again"):
        store.open(file).read()
    memory.rm("/b/a.parquet")
    with pytest.raises(FileChangedError, match="vanished"):
        store.open(file).read()
