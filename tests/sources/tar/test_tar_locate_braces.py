"""Patterns that stand for the names of many tars."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers.http_files import HttpServer
from tars_made import members, tar_bytes, write_tar

from headrace import TarShards
from headrace.errors import NothingFoundError, OptionError
from headrace.sources.tar._locate import expanded


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("a-{8..11}.tar", ["a-8.tar", "a-9.tar", "a-10.tar", "a-11.tar"]),
        ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("a-{2..0}.tar", ["a-2.tar", "a-1.tar", "a-0.tar"]),
        ("a-{0..9..3}.tar", ["a-0.tar", "a-3.tar", "a-6.tar", "a-9.tar"]),
        ("a-{004..0..2}.tar", ["a-004.tar", "a-002.tar", "a-000.tar"]),
        ("{a,b}-{0..1}.tar", ["a-0.tar", "a-1.tar", "b-0.tar", "b-1.tar"]),
        ("{train,val{1..2}}.tar", ["train.tar", "val1.tar", "val2.tar"]),
        ("a{,-extra}.tar", ["a.tar", "a-extra.tar"]),
        ("s3://b/{0..1}.tar::s3://c/x.tar", ["s3://b/0.tar", "s3://b/1.tar", "s3://c/x.tar"]),
    ],
)
def test_what_is_meant(named: str, meant: list[str]) -> None:
    assert expanded(named) == meant
    assert expanded([named, Path("z.tar")]) == [*meant, Path("z.tar")]


@pytest.mark.parametrize(
    "named",
    ["a.tar", "a-{1}.tar", "a-{}.tar", "a-{x..y}.tar", Path("a.tar"), "simplecache::s3://b/a.tar"],
)
def test_all_else_is_as_it_is(named: str | Path) -> None:
    assert expanded(named) is named
    assert expanded([named]) == [named]


def test_variables_and_the_home_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for number in range(2):
        write_tar(tmp_path / f"{number}.tar", members(2, number))
    for source in ("$DATA/{0..1}.tar", "${DATA}/0.tar::$DATA/1.tar", "~/{0,1}.tar"):
        assert TarShards(source).shard_names == ["0.tar", "1.tar"]


def test_commands_are_not_run(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"commands are never run; name the files"):
        TarShards(f"pipe:cat {tmp_path}/a.tar")


def test_a_file_with_braces_in_its_name_is_itself(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a-{0..1}.tar", members(2))
    assert len(TarShards(path)) == 2


def test_too_many_and_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.sources.tar._locate._MOST_NAMES", 1000)
    with pytest.raises(OptionError, match="more than 1,000 tars"):
        expanded("{0..999999}-{0..999999}.tar")
    write_tar(tmp_path / "0.tar", members(1))
    with pytest.raises(NothingFoundError, match=r"1\.tar"):
        TarShards(tmp_path / "{0..1}.tar")


def test_in_a_url(tmp_path: Path, http_server: HttpServer) -> None:
    for number in range(3):
        http_server.put(f"d/a-{number:02}.tar", tar_bytes(members(2, number)))
    shards = TarShards(f"{http_server.url}/d/a-{{00..02}}.tar")
    assert shards.shard_names == ["a-00.tar", "a-01.tar", "a-02.tar"]
