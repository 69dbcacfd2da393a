"""``headrace convert`` to tars and from tars, and never into its own source."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warm_interpreters import run_warm

import headrace
from headrace.cli import main
from headrace.sources.array_record.backend import ArrayRecordBackend
from headrace.sources.tar.index_files import read_index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in" / "a").mkdir(parents=True)
    for n in range(12):
        (tmp_path / "in" / "a" / f"{n:02d}.jpg").write_bytes(b"j" * n)
        (tmp_path / "in" / "a" / f"{n:02d}.json").write_text(json.dumps({"n": n}))
    return tmp_path / "in"


def names(tar: Path) -> list[str]:
    with tarfile.open(tar) as opened:
        return opened.getnames()


def convert(source: object, target: object, *options: str) -> int:
    return main(["convert", str(source), str(target), *options])


def test_a_folder_and_back(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tars = tmp_path / "tars"
    assert convert(folder, tars, "--to", "tar", "--shard-samples", "5") == 0
    output = capsys.readouterr()
    assert output.out == f"12 samples in 3 tars: {tars}\n"
    assert output.err.splitlines() == ["writing 0%", "writing 100%"]
    assert names(tars / "shard_00000.tar")[:3] == ["a/00.jpg", "a/00.json", "a/01.jpg"]
    assert (tars / "shard_00000.idx.arrow").exists()
    records = tmp_path / "x.array_record"
    assert convert(tars, records, "--to", "array-record") == 0
    assert ArrayRecordBackend(records).get_row(3)["json"] == b'{"n": 3}'
    assert convert(records, tmp_path / "again", "--to", "tar", "--shard-samples", "5") == 0
    for name in ("shard_00000.tar", "shard_00002.tar"):
        assert (tars / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert (
        main(["shuffle-into", str(tars), str(tmp_path / "shuffled"), "--columns", "__key__"]) == 0
    )
    keys = pq.read_table(tmp_path / "shuffled")["__key__"].to_pylist()
    assert sorted(keys) == [f"a/{n:02d}" for n in range(12)] != keys


def test_columns_as_fields(tmp_path: Path) -> None:
    table = pa.table({"image": [b"1", b"2"], "label": [3, 4], "words": ["a", "b"], "no": [0, 0]})
    pq.write_table(table, tmp_path / "rows.parquet")
    fields = json.dumps({"image": "jpg", "label": "cls"})
    options = ["--fields", fields, "--columns", "image,label,words"]
    more = ["--pattern", "train-{:03d}.tar", "--index", "json", "--key-column", "words"]
    assert convert(tmp_path / "rows.parquet", tmp_path / "out", "--to", "tar", *options, *more) == 0
    tar = tmp_path / "out" / "train-000.tar"
    assert names(tar) == ["a.jpg", "a.cls", "b.jpg", "b.cls"]
    assert (tmp_path / "out" / "train-000.json").exists()
    row = headrace.open(str(tar)).backend.get_row(1)
    assert (row["jpg"], row["cls"]) == (b"2", b"4")


def test_less_in_the_index(folder: Path, tmp_path: Path) -> None:
    options = ["--geometry", "--no-hash", "--no-sidecars", "--keys", "number"]
    assert convert(folder, tmp_path / "out", "--to", "tar", *options) == 0
    index = read_index(tmp_path / "out" / "shard_00000.idx.arrow")
    assert "000000003.jpg" in index.names.to_pylist()
    assert index.facts.has_geometry
    assert (index.facts.hash_lfs, index.sha256, index.json) == (None, None, None)
    assert convert(folder, tmp_path / "bare", "--to", "tar", "--index", "none") == 0
    assert sorted(os.listdir(tmp_path / "bare")) == ["_headrace_copy.json", "shard_00000.tar"]


def test_tables_of_json_as_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for n in range(3):
        (tmp_path / "in" / f"{n}.json").write_text(json.dumps({"n": n}))
    assert convert(tmp_path / "in", tmp_path / "rows", "--to", "tar") == 0
    assert names(tmp_path / "rows" / "shard_00000.tar")[0] == "000000000.json"
    assert convert(tmp_path / "in", tmp_path / "files", "--to", "tar", "--format", "folder") == 0
    assert names(tmp_path / "files" / "shard_00000.tar") == ["0.json", "1.json", "2.json"]


def test_several_tars(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x", "y"):
        assert convert(folder, tmp_path / name, "--to", "tar") == 0
    capsys.readouterr()
    both = [str(tmp_path / name / "shard_00000.tar") for name in ("x", "y")]
    options = ["--to", "tar"]
    assert main(["convert", *both, str(tmp_path / "out"), *options]) == 2
    assert "or give --keys number for new keys, or --keys prefix" in capsys.readouterr().err
    assert main(["convert", *both, str(tmp_path / "all"), *options, "--keys", "prefix"]) == 0
    assert capsys.readouterr().out == f"24 samples in 1 tar: {tmp_path / 'all'}\n"
    assert names(tmp_path / "all" / "shard_00000.tar")[-1] == "y/shard_00000/a/11.json"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fields", "jpg"], "--fields must be JSON"),
        (["--shard-bytes", "many"], "shard_bytes"),
        (["--fields", '{"a": "jpg"}'], "fields is for rows, and has no effect"),
        (["--catalog", "{}"], "--catalog has no effect"),
        (["--pattern", "x.tar"], "pattern must be a name"),
        (["--target-options", "x"], "--target-options must be JSON"),
    ],
)
def test_what_is_wrong(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    assert convert(folder, tmp_path / "out", "--to", "tar", *options) == 2
    assert message in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["in"]


def test_records_into_their_own_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"id": range(50)}), tmp_path / "rows.parquet")
    parts = tmp_path / "parts"
    options = ["--to", "array-record", "--shard-records", "20"]
    assert convert(tmp_path / "rows.parquet", parts, *options) == 0
    before = sorted(path.name for path in parts.glob("part-*"))
    for target, form in [
        (parts / "more.array_record", "array-record"),
        (parts / "below" / "tars", "tar"),
        (parts / before[0], "array-record"),
    ]:
        assert convert(parts, target, "--to", form, "--overwrite") == 2
        assert "is inside the" in capsys.readouterr().err
    assert convert(f"{parts / before[0]}[0:5]", parts / before[0], *options[:2], "--overwrite") == 2
    assert "is inside the target" in capsys.readouterr().err
    assert main(["shuffle-into", str(parts), str(parts / "copy")]) == 2
    assert "is inside the source" in capsys.readouterr().err
    assert sorted(path.name for path in parts.glob("part-*")) == before
    beside = tmp_path / "beside.array_record"
    assert convert(parts, beside, "--to", "array-record") == 0


LANCE = """
import sys, lance, pyarrow
from headrace.cli import main
table = sys.argv[1]
lance.write_dataset(pyarrow.table({"id": range(30), "bin": [b"x"] * 30}), table)
print([
    main(["convert", table, target, "--to", form])
    for target, form in [
        (f"{table}/x.array_record", "array-record"),
        (f"{table}/below/x", "tar"),
        (table, "tar"),
        (f"{table}-beside", "tar"),
    ]
])
"""


def test_a_lance_table_into_itself(tmp_path: Path) -> None:
    table = tmp_path / "t.lance"
    result = run_warm("-c", LANCE, table)
    assert result.stdout.splitlines()[-1] == "[2, 2, 2, 0]", result.stderr
    assert result.stderr.count("is inside the") == 3
    assert not (table / "x.array_record").exists()
    assert names(Path(f"{table}-beside") / "shard_00000.tar")[:2] == [
        *("000000000.bin", "000000000.json")
    ]
