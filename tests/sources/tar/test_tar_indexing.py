"""Indices of many tars: where they go, what is left alone, and what goes wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers.http_files import HttpServer
from servers.hub import HubServer
from servers.s3 import S3Server
from tar_making import member, scanned, write_tar

from headrace import TarShards
from headrace.errors import NothingFoundError, OptionError, ReadError, WriteError
from headrace.sources.tar import index_tars, write_captions
from headrace.sources.tar._json_index import json_index
from headrace.sources.tar.index import IndexFile, TarIndex, write_index
from headrace.sources.tar.index_files import ENDINGS, read_index
from headrace.sources.tar.indexing import _path_below, convert_indexes, verify_tars

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (7).to_bytes(4, "big") + (5).to_bytes(4, "big")


def members(first: int) -> list[tuple[str, bytes]]:
    return [
        one
        for number in range(first, first + 3)
        for one in ((f"{number}.png", PNG + bytes(number)), (f"{number}.json", b'{"text": "t"}'))
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(("a.tar", "x/a.tar", "x/y/b.tar")):
        write_tar(tmp_path / "tars" / name, members(10 * number))
    return tmp_path / "tars"


def files_below(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def entries(index: TarIndex) -> object:
    """What an index says of members."""
    return json.loads(json_index(index))["files"]


# --- where indices go


def test_beside_the_tars(folder: Path) -> None:
    report = index_tars(folder)
    assert (report.members, report.failed, len(report.tars)) == (18, [], 3)
    assert [tar.name for tar in report.tars] == ["a.tar", "x/a.tar", "x/y/b.tar"]
    assert {"a.idx.arrow", "x/a.idx.arrow", "x/y/b.idx.arrow"} < set(files_below(folder))
    assert read_index(folder / "x/a.idx.arrow").captions[0].as_py() == '"t"'


def test_an_index_that_cannot_be_written_beside_its_tar(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "tars" / f"{'x' * 245}.tar", members(0))
    for format in ("arrow", "json"):
        with pytest.raises(WriteError, match="too long"):
            index_tars(tar, format=format)
    assert os.listdir(tmp_path / "tars") == [tar.name]
    assert next(TarShards(tar).samples()).captions == "t"


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tar = write_tar(tmp_path / "tars" / "a.tar", members(0))
    script = f"""
import resource, signal
from headrace.errors import WriteError
from headrace.sources.tar import index_tars, write_captions
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    index_tars({str(tar)!r})
except WriteError as error:
    print(error)
"""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "cannot be written" in ran.stdout
    assert files_below(tmp_path) == ["tars/a.tar"]


def test_json_for_other_tools(folder: Path) -> None:
    index_tars(folder, format="json")
    assert {"a.json", "x/a.json", "x/y/b.json"} < set(files_below(folder))
    told = json.loads((folder / "x/a.json").read_text())
    assert told["filesize"] == (folder / "x/a.tar").stat().st_size
    assert told["files"]["10.png"]["json_metadata"] == {"text": "t"}
    assert told["files"]["10.png"]["captions"] == "t"


@pytest.mark.parametrize(("format", "ending"), [("json", ".json"), ("arrow", ".idx.arrow")])
def test_in_a_folder_of_their_own_tars_of_one_name_stay_apart(
    folder: Path, tmp_path: Path, format: str, ending: str
) -> None:
    index_tars(folder, tmp_path / "out", format=format, geometry=True)
    names = ["a", "x/a", "x/y/b"]
    assert files_below(tmp_path / "out") == [name + ending for name in names]
    for name in names:
        index = read_index(str(tmp_path / "out" / (name + ending)))
        assert entries(index) == entries(scanned(folder / f"{name}.tar", geometry=True))
        assert index.widths.tolist() == [7, 0] * 3
    assert not any(name.endswith(ending) for name in files_below(folder))


def test_one_file_for_all(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "all.arrow"
    for was_there in (False, True):
        report = index_tars(folder, one_file=path, hash=True)
        assert [tar.was_there for tar in report.tars] == [was_there] * 3
        found = IndexFile.open(path)
        assert list(found.tars) == ["a.tar", "x/a.tar", "x/y/b.tar"]
        expected = entries(scanned(folder / "x/y/b.tar", hash=True))
        assert entries(found.index(2)) == expected
    assert files_below(path.parent) == ["all.arrow"]


def test_a_list_of_tars_and_a_range(folder: Path, tmp_path: Path) -> None:
    report = index_tars([folder / "a.tar", folder / "x" / "y"], tmp_path / "out")
    assert [tar.name for tar in report.tars] == ["a.tar", "b.tar"]
    report = index_tars(str(folder / "**" / "*.tar"), tmp_path / "some", range=(1, 5))
    assert [tar.name for tar in report.tars] == ["x/a.tar", "x/y/b.tar"]
    assert files_below(tmp_path / "some") == ["x/a.idx.arrow", "x/y/b.idx.arrow"]


def test_names_of_members_are_never_paths(tmp_path: Path) -> None:
    names = ["../../up.jpg", "/etc/absolute.jpg", "..", "a/../b.jpg"]
    write_tar(tmp_path / "in" / "a.tar", [(name, b"x") for name in names])
    index_tars(tmp_path / "in", tmp_path / "out" / "deep")
    index_tars(tmp_path / "in", one_file=tmp_path / "out" / "all.arrow")
    assert read_index(tmp_path / "out/deep/a.idx.arrow").names.to_pylist() == names
    assert files_below(tmp_path) == [
        "in/a.tar",
        "out/all.arrow",
        "out/deep/a.idx.arrow",
    ]


@pytest.mark.parametrize("name", ["../a.tar", "a/../../b.tar", "/a.tar", "a//b.tar", "a\\..\\b"])
def test_a_tar_whose_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError, match=r"an index in .* cannot be called"):
        _path_below(str(tmp_path), name)


def test_names_of_tars_in_an_index_are_not_trusted(folder: Path, tmp_path: Path) -> None:
    index = scanned(folder / "a.tar")
    (tmp_path / "deep").mkdir()
    path = tmp_path / "deep" / "all.arrow"
    write_index(path, [("../out.tar", index), ("in.tar", index)])
    with pytest.raises(OptionError, match=r"an index in .* cannot be called"):
        convert_indexes(path, "json")
    assert files_below(tmp_path / "deep") == ["all.arrow"]


# --- what is there already


def test_a_second_run_leaves_what_is_there(folder: Path) -> None:
    index_tars(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.arrow")}
    write_tar(folder / "new.tar", members(90))
    report = index_tars(folder)
    assert [tar.was_there for tar in report.tars] == [True, False, True, True]
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize("format", ["json", "arrow"])
def test_what_an_index_lacks_is_added(folder: Path, format: str) -> None:
    def run(**more: bool) -> list[bool]:
        return [tar.was_there for tar in index_tars(folder / "a.tar", format=format, **more).tars]

    assert run(sidecars=False) == [False]
    assert run(sidecars=False) == [True]
    assert run() == [False]
    assert run(geometry=True) == [False]
    assert run(hash=True, geometry=True) == [False]
    assert run(hash=True, geometry=True) == run(geometry=True) == run() == [True]


def test_captions_that_were_written_stay(folder: Path) -> None:
    index_tars(folder / "a.tar", format="json")
    path = folder / "a.json"
    told = json.loads(path.read_text())
    told["files"]["1.png"]["captions"] = ["by hand"]
    path.write_text(json.dumps(told))
    index_tars(folder / "a.tar", format="json", geometry=True)
    files = json.loads(path.read_text())["files"]
    assert files["1.png"]["captions"] == ["by hand"]
    assert files["2.png"]["captions"] == "t"
    assert files["1.png"]["width"] == 7


def test_a_stale_index_is_made_anew(folder: Path) -> None:
    for format in ("arrow", "json"):
        index_tars(folder / "a.tar", format=format)
    write_tar(folder / "a.tar", members(50))
    for format, path in (("arrow", folder / "a.idx.arrow"), ("json", folder / "a.json")):
        assert not index_tars(folder / "a.tar", format=format).tars[0].was_there
        assert "50.png" in read_index(path).names.to_pylist()
    (folder / "a.idx.arrow").unlink()
    told = json.loads((folder / "a.json").read_text())
    told["files"]["50.png"]["offset"] = -512
    (folder / "a.json").write_text(json.dumps(told))
    assert not index_tars(folder / "a.tar", format="json").tars[0].was_there
    assert index_tars(folder / "a.tar", format="json").tars[0].was_there


def test_a_tar_written_again_with_the_same_size(folder: Path) -> None:
    index_tars(folder / "a.tar")
    renamed = [(name.replace("0", "9"), payload) for name, payload in members(0)]
    write_tar(folder / "a.tar", renamed)
    assert not index_tars(folder / "a.tar").tars[0].was_there


def test_a_file_that_is_no_index_is_not_written_over(folder: Path) -> None:
    (folder / "x" / "a.json").write_text('{"mine": true}')
    with pytest.raises(OptionError, match=r"x/a\.json.*holds something else; move it"):
        index_tars(folder, format="json")
    assert (folder / "x" / "a.json").read_text() == '{"mine": true}'
    index_tars(folder)
    assert (folder / "x" / "a.json").read_text() == '{"mine": true}'


@pytest.mark.parametrize("format", ["arrow", "json"])
def test_a_caption_that_changes_within_its_size(tmp_path: Path, format: Any) -> None:
    """Captions of the tar are read again; captions that a user wrote stay."""
    tar, index = tmp_path / "a.tar", tmp_path / f"a{ENDINGS[format]}"

    def captions() -> list[str | None]:
        found = read_index(index).captions
        assert found is not None
        return [text and json.loads(text) for text in found.to_pylist()]

    def change(text: bytes) -> None:
        write_tar(tar, [("a.jpg", b"1"), ("a.txt", text), ("b.jpg", b"2"), ("b.txt", b"same")])
        os.utime(tar, ns=(0, change_times.pop()))
        index_tars(tar, format=format)

    change_times = [3_000_000_000, 2_000_000_000, 1_000_000_000]
    change(b"old")
    assert captions() == ["old", None, "same", None]
    change(b"new")
    assert captions() == ["new", None, "same", None]
    write_captions(index, {"b": "mine"})
    change(b"odd")
    assert captions()[2] == "mine"


# --- several at a time


@pytest.mark.parametrize("workers", [1, 3])
def test_workers(folder: Path, tmp_path: Path, workers: int) -> None:
    told: list[float] = []
    report = index_tars(
        folder,
        tmp_path / "out",
        workers=workers,
        progress=lambda stage, share: told.append(share),
    )
    assert [tar.members for tar in report.tars] == [6, 6, 6]
    assert told[0] == 0.0
    assert told[-1] == 1.0
    assert told == sorted(told)


@pytest.mark.parametrize("workers", [1, 2])
def test_tars_that_cannot_be_indexed(folder: Path, tmp_path: Path, workers: int) -> None:
    broken = member(b"good.jpg", b"1") + member(b"b.jpg", b"2" * 600)[:700]
    (folder / "broken.tar").write_bytes(broken)
    (folder / "none.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(
        ReadError, match=r"broken\.tar: .*ends inside.*'good\.jpg'|none\.tar is not"
    ):
        index_tars(folder, tmp_path / "out", workers=workers)
    report = index_tars(folder, tmp_path / "out", workers=workers, keep_going=True)
    assert [tar.name for tar in report.broken] == ["broken.tar"]
    assert [tar.name for tar in report.tars] == ["a.tar", "broken.tar", "x/a.tar", "x/y/b.tar"]
    assert len(report.failed) == 1
    assert "none.tar is not a tar" in report.failed[0]
    assert read_index(tmp_path / "out/broken.idx.arrow").facts.last_good == "good.jpg"
    with pytest.raises(ReadError, match="ends inside"):
        index_tars(folder / "broken.tar", tmp_path / "out")


def test_compressed_tars_are_told_how_to_be_converted(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"\x1f\x8b" + bytes(2000))
    with pytest.raises(OptionError, match=r"a\.tar\.gz is compressed.*gunzip"):
        index_tars(tmp_path)
    (tmp_path / "a.tar.gz").rename(tmp_path / "a.tar")
    with pytest.raises(ReadError, match=r"is compressed.*gzip -d"):
        index_tars(tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"format": "csv"}, "format must be one of"),
        ({"workers": 0}, "workers must be an int"),
        ({"workers": True}, "workers must be an int"),
        ({"range": (2, 2)}, "range must be two numbers"),
        ({"range": (3, 9)}, "only 3"),
        ({"out": "s3://bucket/x"}, "out must be a path on this machine"),
        ({"out": "x", "one_file": "y"}, "one_file is one index for all"),
    ],
    ids=str,
)
def test_options_that_make_no_sense(folder: Path, options: dict, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        index_tars(folder, **options)


# --- elsewhere


def test_a_hub_repository(
    folder: Path, tmp_path: Path, hub_server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub_server.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    hub_server.make_repo("owner/name")
    for name in ("a.tar", "x/a.tar"):
        hub_server.put("owner/name", f"sub/{name}", (folder / name).read_bytes(), lfs=True)
    index_tars("hf://datasets/owner/name/sub", tmp_path / "out", geometry=True)
    assert files_below(tmp_path / "out") == ["a.idx.arrow", "x/a.idx.arrow"]
    expected = scanned(folder / "x/a.tar", geometry=True)
    assert entries(read_index(tmp_path / "out/x/a.idx.arrow")) == entries(expected)


def test_without_a_place_of_their_own_they_go_into_the_cache(
    folder: Path, tmp_path: Path, http_server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = http_server.put("a.tar", (folder / "a.tar").read_bytes())
    assert not index_tars(url, geometry=True).tars[0].was_there
    assert index_tars(url, geometry=True).tars[0].was_there
    before = len(http_server.log)
    index = TarShards(url).collection.index(0)
    assert index.widths.tolist() == [7, 0] * 3
    assert not [request for request in http_server.log[before:] if request.method == "GET"]
    with pytest.raises(OptionError, match=r"an index cannot be written beside.*metadata="):
        index_tars(url, format="json")


def test_a_bucket(folder: Path, tmp_path: Path, s3_server: S3Server) -> None:
    bucket = s3_server.make_bucket("index-tars")
    for name in ("a.tar", "x/a.tar"):
        s3_server.put(bucket, f"tars/{name}", (folder / name).read_bytes())
    report = index_tars(
        f"s3://{bucket}/tars", tmp_path / "out", storage_options=s3_server.storage_options
    )
    assert [tar.name for tar in report.tars] == ["a.tar", "x/a.tar"]
    index = read_index(tmp_path / "out/a.idx.arrow")
    assert entries(index) == entries(scanned(folder / "a.tar"))


def test_a_list_of_urls(folder: Path, tmp_path: Path, http_server: HttpServer) -> None:
    urls = [http_server.put(f"/{n}.tar", (folder / "a.tar").read_bytes()) for n in range(12)]
    report = index_tars(urls, one_file=tmp_path / "all.arrow")
    assert len(report.tars) == 12
    assert report.members == 72


# --- other forms, and whether they are right


def test_indices_go_into_the_other_form_and_back(folder: Path, tmp_path: Path) -> None:
    index_tars(folder, tmp_path / "json", format="json", geometry=True, hash=True)
    (tmp_path / "json" / "other.json").write_text("[1, 2]")
    written = convert_indexes(tmp_path / "json", "arrow", out=tmp_path / "arrow")
    assert files_below(tmp_path / "arrow") == ["a.idx.arrow", "x/a.idx.arrow", "x/y/b.idx.arrow"]
    assert [Path(path).name for path in written] == ["a.idx.arrow", "a.idx.arrow", "b.idx.arrow"]
    convert_indexes(tmp_path / "json", "arrow", one_file=tmp_path / "all.arrow")
    for source, out in (("arrow", "back"), ("all.arrow", "again")):
        convert_indexes(tmp_path / source, "json", out=tmp_path / out)
        for name in ("a.json", "x/a.json", "x/y/b.json"):
            assert (tmp_path / out / name).read_bytes() == (tmp_path / "json" / name).read_bytes()
    with pytest.raises(ReadError, match="not an index of a tar"):
        convert_indexes(tmp_path / "json" / "other.json", "arrow")
    with pytest.raises(NothingFoundError, match="no index"):
        convert_indexes(folder, "json")


def test_verification(folder: Path, tmp_path: Path) -> None:
    index_tars(folder, tmp_path / "out", hash=True)
    names = ["a.tar", "x/a.tar", "x/y/b.tar"]
    good = verify_tars(folder, tmp_path / "out")
    assert {name: list(found) for name, found in good.items()} == {name: [] for name in names}
    data = bytearray((folder / "a.tar").read_bytes())
    data[600] ^= 1
    (folder / "a.tar").write_bytes(data)
    (tmp_path / "out/x/y/b.idx.arrow").unlink()
    index = scanned(folder / "a.tar", sidecars=False)
    write_index(tmp_path / "out/x/a.idx.arrow", [("a.tar", index)])
    found = verify_tars(folder, tmp_path / "out")
    assert any("SHA-256" in problem for problem in found["a.tar"])
    assert found["x/a.tar"]
    assert "has no index; make one with: headrace index" in found["x/y/b.tar"][0]
    assert not verify_tars(folder / "a.tar", tmp_path / "out", hash=False)["a.tar"]
