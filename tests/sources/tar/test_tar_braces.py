"""Ranges in braces, which name many tars at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_tars import write_tar
from servers.http_files import HttpServer

from headrace import NothingFoundError, OptionError, TarShards
from headrace.sources.tar.braces import without_braces


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("{9..10}/x", ["9/x", "10/x"]),
        ("{2..0}.tar", ["2.tar", "1.tar", "0.tar"]),
        ("{0..1}/{00..01}", ["0/00", "0/01", "1/00", "1/01"]),
        ("s3://bucket/x{1..1}.tar", ["s3://bucket/x1.tar"]),
    ],
)
def test_what_is_meant(named: str, meant: list[str]) -> None:
    assert without_braces(named) == meant
    assert without_braces(["first", Path(named), "last"])[1:-1] == [
        str(Path(one)) if "//" in one else one for one in meant
    ]


@pytest.mark.parametrize("named", ["a.tar", "{a,b}.tar", "{1..}.tar", "{a..b}.tar", ["a", "b"]])
def test_all_else_is_as_it_is(named: object) -> None:
    assert without_braces(named) is named  # type: ignore[arg-type]


def test_a_file_with_braces_in_its_name_is_itself(tmp_path: Path) -> None:
    named = write_tar(tmp_path / "{0..1}.tar", [("x.bin", b"1")])
    assert TarShards(named).shard_names == ["{0..1}.tar"]


def test_too_many_and_too_few(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="1,000,000,000 tars"):
        TarShards(tmp_path / "{1..1000000000}.tar")
    write_tar(tmp_path / "0.tar", [("x.bin", b"1")])
    with pytest.raises(NothingFoundError, match=r"1\.tar does not exist"):
        TarShards(tmp_path / "{0..1}.tar")


def test_in_a_url(tmp_path: Path, http_server: HttpServer) -> None:
    for number in range(3):
        tar = write_tar(tmp_path / f"{number}.tar", [(f"{number}.bin", b"%d" % number)])
        http_server.put(f"x/{tar.name}", tar.read_bytes())
    shards = TarShards(f"{http_server.url}/x/{{1..2}}.tar", cache_dir=tmp_path / "cache")
    assert [sample.bytes for sample in shards] == [b"1", b"2"]
