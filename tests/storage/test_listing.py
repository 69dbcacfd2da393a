"""From what people call a path to the files they mean, on the local disk."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import NothingFoundError, OptionError
from headrace.storage import LocalStore, find_files


def plant(root: Path, *names: str) -> Path:
    """Files with these names, each with its name as content."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def found(path: Any, root: Path) -> list[str]:
    """Paths of what is found, relative to ``root``."""
    listing = find_files(path)
    paths = [file.path for file in listing.files]
    assert paths == sorted(paths)
    assert len(paths) == len(set(paths))
    return [os.path.relpath(path, root) for path in paths]


def test_one_file(tmp_path: Path) -> None:
    plant(tmp_path, "a.parquet", "b.parquet")
    listing = find_files(tmp_path / "a.parquet")
    (file,) = listing.files
    assert file.path == str(tmp_path / "a.parquet")
    assert file.file_size == len("a.parquet")
    assert file.etag is not None
    assert listing.store == LocalStore()
    assert listing.roots == [str(tmp_path)]
    assert listing.named == {file.path}


def test_a_directory_is_searched_to_the_bottom_and_sorted_by_path(tmp_path: Path) -> None:
    names = ["z.parquet", "a/b/c/deep.parquet", "a.parquet", "a/x.parquet", "B.parquet"]
    plant(tmp_path, *names)
    assert found(tmp_path, tmp_path) == sorted(names)
    assert found(f"{tmp_path}/", tmp_path) == sorted(names)
    listing = find_files(str(tmp_path))
    assert listing.roots == [str(tmp_path)]
    assert listing.named == frozenset()


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.parquet", ["0.parquet", "1.parquet", "22.parquet"]),
        ("?.parquet", ["0.parquet", "1.parquet"]),
        ("[02]*.parquet", ["0.parquet", "22.parquet"]),
        ("[!02].parquet", ["1.parquet"]),
        ("d*/*.parquet", ["d1/x.parquet", "d2/x.parquet"]),
        ("**/x.parquet", ["d1/e/x.parquet", "d1/x.parquet", "d2/x.parquet"]),
        ("**/*.csv", ["c.csv", "d1/c.csv"]),
        ("d*", ["d1/c.csv", "d1/e/x.parquet", "d1/x.parquet", "d2/x.parquet"]),
        ("**/e", ["d1/e/x.parquet"]),
        ("**/**/c.csv", ["c.csv", "d1/c.csv"]),
        ("d?/**/e/**/x.*", ["d1/e/x.parquet"]),
        ("**.parquet", ["0.parquet", "1.parquet", "22.parquet"]),
        ("d1/**", ["d1/c.csv", "d1/e/x.parquet", "d1/x.parquet"]),
    ],
)
def test_globs(tmp_path: Path, pattern: str, names: list[str]) -> None:
    plant(tmp_path, "0.parquet", "1.parquet", "22.parquet", "c.csv", "d1/c.csv")
    plant(tmp_path, "d1/x.parquet", "d2/x.parquet", "d1/e/x.parquet")
    assert found(tmp_path / pattern, tmp_path) == names
    assert found(f"file://{tmp_path}/{pattern}", tmp_path) == names


def test_what_a_glob_matches_is_named_and_what_is_below_it_is_not(tmp_path: Path) -> None:
    plant(tmp_path, "d.parquet", "d/e.parquet")
    listing = find_files(tmp_path / "d*")
    assert listing.named == {str(tmp_path / "d.parquet")}
    assert listing.roots == [str(tmp_path)]
    assert len(listing.files) == 2


def test_a_list_of_everything(tmp_path: Path) -> None:
    plant(tmp_path, "a.parquet", "d/b.parquet", "e/c.parquet", "e/c.csv")
    given = [str(tmp_path / "a.parquet"), tmp_path / "d", f"file://{tmp_path}/e/*.parquet"]
    assert found(given, tmp_path) == ["a.parquet", "d/b.parquet", "e/c.parquet"]
    assert found(tuple(given), tmp_path) == ["a.parquet", "d/b.parquet", "e/c.parquet"]
    assert find_files(given).roots == [str(tmp_path), str(tmp_path / "d"), str(tmp_path / "e")]


def test_relative_paths_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, "sub/a.parquet", "~odd.parquet")
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("a.parquet", "./a.parquet", "../sub/a.parquet", "*.parquet", ".", "~/sub"):
        assert found(path, tmp_path) == ["sub/a.parquet"], path
    monkeypatch.chdir(tmp_path)
    assert found("~odd.parquet", tmp_path) == ["~odd.parquet"]


@pytest.mark.parametrize(
    "name",
    [
        "with space.parquet",
        "übergröße-数据.parquet",
        "100%.parquet",
        "a%20b.parquet",
        "part[0].parquet",
        "what?.parquet",
        "star*.parquet",
        "hash#1.parquet",
        "new\nline.parquet",
        "semi;colon&amp=.parquet",
    ],
)
def test_a_path_that_exists_is_literal(tmp_path: Path, name: str) -> None:
    plant(tmp_path, name, "part0.parquet", "whatx.parquet", "starx.parquet", "a b.parquet")
    assert found(tmp_path / name, tmp_path) == [name]
    assert found(f"file://{tmp_path}/{name}", tmp_path) == [name]
    assert found((tmp_path / name).as_uri(), tmp_path) == [name]
    assert name in found(tmp_path, tmp_path)


def test_file_urls(tmp_path: Path) -> None:
    plant(tmp_path, "my dir/a.parquet")
    for url in (
        f"file://{tmp_path}/my%20dir/*.parquet",
        f"file://localhost{tmp_path}/my%20dir",
        f"local://{tmp_path}/my dir/a.parquet",
        f"file://{tmp_path}/my dir/?.parquet",
    ):
        assert found(url, tmp_path) == ["my dir/a.parquet"], url


def test_directories_with_brackets_in_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, "run[1]/a.parquet", "run[1]/deep/b.parquet", "run1/no.parquet")
    names = ["run[1]/a.parquet", "run[1]/deep/b.parquet"]
    assert found(tmp_path / "run[1]", tmp_path) == names
    assert found(tmp_path / "run[1]" / "*.parquet", tmp_path) == names[:1]
    assert found(tmp_path / "run[1]" / "**" / "*.parquet", tmp_path) == names
    monkeypatch.chdir(tmp_path / "run[1]")
    assert found("*.parquet", tmp_path) == names[:1]
    assert found(tmp_path / "run[12]" / "*.parquet", tmp_path) == ["run1/no.parquet"]


HIDDEN = [
    ".hidden.parquet",
    ".a.parquet.crc",
    "_SUCCESS",
    "_metadata",
    "_common_metadata",
    "_delta_log/0.json",
    ".git/x.parquet",
    "d/_temporary/0/x.parquet",
    "d/.part.parquet",
]


def test_hidden_files_are_skipped(tmp_path: Path) -> None:
    plant(tmp_path, "a.parquet", "d/b.parquet", *HIDDEN)
    assert found(tmp_path, tmp_path) == ["a.parquet", "d/b.parquet"]
    assert found(tmp_path / "*", tmp_path) == ["a.parquet", "d/b.parquet"]
    assert found(tmp_path / "**", tmp_path) == ["a.parquet", "d/b.parquet"]
    assert found(tmp_path / "**" / "*.parquet", tmp_path) == ["a.parquet", "d/b.parquet"]


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_files_that_are_named_are_taken(tmp_path: Path, name: str) -> None:
    plant(tmp_path, "a.parquet", *HIDDEN)
    assert found(tmp_path / name, tmp_path) == [name]


def test_hidden_files_that_a_pattern_spells_out_are_taken(tmp_path: Path) -> None:
    plant(tmp_path, "a.parquet", "_b.parquet", ".c.parquet", "_d/e.parquet", "_d/_f.parquet")
    assert found(tmp_path / "_*.parquet", tmp_path) == ["_b.parquet"]
    assert found(tmp_path / ".*.parquet", tmp_path) == [".c.parquet"]
    assert found(tmp_path / "_d", tmp_path) == ["_d/e.parquet"]
    assert found(tmp_path / "_d" / "*", tmp_path) == ["_d/e.parquet"]


def test_a_data_set_below_a_hidden_directory_is_found(tmp_path: Path) -> None:
    plant(tmp_path, ".cache/_data/a.parquet")
    assert found(tmp_path / ".cache" / "_data", tmp_path) == [".cache/_data/a.parquet"]
    assert found(tmp_path / ".cache" / "_data" / "*", tmp_path) == [".cache/_data/a.parquet"]


def test_partitions_whose_key_begins_with_an_underscore_are_kept(tmp_path: Path) -> None:
    plant(tmp_path, "_day=1/a.parquet", "x=_y/.k=2/b.parquet", "x=1/_SUCCESS")
    names = ["_day=1/a.parquet", "x=_y/.k=2/b.parquet"]
    assert found(tmp_path, tmp_path) == names
    assert found(tmp_path / "*", tmp_path) == names


def test_links_are_followed_but_never_back(tmp_path: Path) -> None:
    data = plant(tmp_path / "data", "a.parquet", "sub/b.parquet")
    other = plant(tmp_path / "other", "c.parquet")
    (data / "linked").symlink_to(other, target_is_directory=True)
    (data / "up").symlink_to(data, target_is_directory=True)
    (data / "sub" / "up").symlink_to(data, target_is_directory=True)
    (other / "round").symlink_to(data, target_is_directory=True)
    (data / "file.parquet").symlink_to(other / "c.parquet")
    names = ["a.parquet", "file.parquet", "linked/c.parquet", "sub/b.parquet"]
    assert found(data, data) == names
    assert found(data / "**", data) == names
    assert found(data / "**" / "*.parquet", data) == names


def test_a_directory_that_is_itself_a_link(tmp_path: Path) -> None:
    plant(tmp_path / "real", "a.parquet", "d/b.parquet")
    (tmp_path / "current").symlink_to(tmp_path / "real", target_is_directory=True)
    assert found(tmp_path / "current", tmp_path) == ["current/a.parquet", "current/d/b.parquet"]


@pytest.mark.parametrize("link", ["aa", "zz"])
def test_of_two_ways_to_a_directory_the_real_one_is_listed(tmp_path: Path, link: str) -> None:
    """Not the one that the filesystem happens to list first: hosts would differ in order."""
    plant(tmp_path, "mm/deep/x.parquet")
    (tmp_path / link).symlink_to(tmp_path / "mm", target_is_directory=True)
    assert found(tmp_path, tmp_path) == ["mm/deep/x.parquet"]


def test_links_that_lead_nowhere_or_to_themselves_are_no_files(tmp_path: Path) -> None:
    plant(tmp_path, "a.parquet")
    (tmp_path / "gone.parquet").symlink_to(tmp_path / "nowhere")
    (tmp_path / "self.parquet").symlink_to(tmp_path / "self.parquet")
    assert found(tmp_path, tmp_path) == ["a.parquet"]
    assert found(tmp_path / "*.parquet", tmp_path) == ["a.parquet"]
    for name in ("gone.parquet", "self.parquet"):
        with pytest.raises(NothingFoundError, match=name):
            find_files(tmp_path / name)


def test_what_is_not_a_regular_file_is_left_out(tmp_path: Path) -> None:
    plant(tmp_path, "a.parquet")
    os.mkfifo(tmp_path / "pipe.parquet")
    assert found(tmp_path, tmp_path) == ["a.parquet"]


def test_duplicates_are_read_once_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plant(tmp_path, "a.parquet", "b.parquet")
    with caplog.at_level(logging.WARNING, logger="headrace"):
        assert found([tmp_path, tmp_path / "b.parquet"], tmp_path) == ["a.parquet", "b.parquet"]
    assert "named twice" in caplog.text
    assert "b.parquet" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="headrace"):
        found([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("nothing", "nothing does not exist"),
        ("nothing.parquet", "nothing.parquet does not exist"),
        ("a.parquet/below", "below does not exist"),
        ("empty", "no data file in .*empty or below it .*hidden"),
        ("hidden", "no data file in .*hidden or below it"),
        ("*.orc", r"no file matches .*\*\.orc"),
        ("none/*/x", r"no file matches .*none/\*/x"),
        ("x" * 5000, "does not exist"),
    ],
)
def test_nothing_found_says_what_was_looked_for(
    tmp_path: Path, location: str, message: str
) -> None:
    plant(tmp_path, "a.parquet", "hidden/_SUCCESS", "hidden/.x.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NothingFoundError, match=message) as caught:
        find_files(tmp_path / location)
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(NothingFoundError, match=message):
        find_files([tmp_path / "a.parquet", tmp_path / location])


class BytesPath:
    """A PathLike whose path is not text."""

    def __fspath__(self) -> bytes:
        return b"/data"


@pytest.mark.parametrize(
    "wrong", [None, 5, 1.5, b"/data", [5], [None], ["ok", b"/data"], BytesPath(), [BytesPath()]]
)
def test_what_is_no_path_is_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match="path must be a str, a Path or a list of them, not"):
        find_files(wrong)


@pytest.mark.parametrize("empty", ["", [], (), [""]])
def test_nothing_at_all_is_refused(empty: Any) -> None:
    with pytest.raises(OptionError, match="empty"):
        find_files(empty)
