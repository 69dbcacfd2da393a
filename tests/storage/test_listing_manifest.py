"""What was found, saved and given back: nothing is listed, and all the rest is the same."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served_folders import WRITERS, Served, numbers, parquet, put, rows_of, served

from headrace import StructuredDataset
from headrace.errors import FileChangedError, NothingFoundError, OptionError, ReadError

ROWS = 600


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("manifests") / "manifests"
    for format, write in WRITERS.items():
        for part in range(3):
            put(folder, f"{format}/{part}.{format}", write(numbers(ROWS, ROWS * part), 200))
    for part in range(4):
        day, lang = part // 2, "de" if part % 2 else "fr"
        name = f"hive/day={day}/lang={lang}/a.parquet"
        put(folder, name, parquet(numbers(ROWS, ROWS * part), 200))
    put(folder, "hive/_SUCCESS", b"")
    put(folder, "text/a.csv", b"id,x\n" + b"".join(b"%d,%d\n" % (i, 2 * i) for i in range(900)))
    for name in ("replaced", "deleted"):
        put(folder, f"{name}/a.parquet", parquet(numbers(ROWS), 200))
    with served(folder) as bucket:
        yield bucket


@pytest.fixture(autouse=True)
def fresh_log(bucket: Served) -> None:
    bucket.taken()


def saved(bucket: Served, tmp_path: Path, place: str, format: str = "parquet", **how: Any) -> Path:
    manifest = tmp_path / "found.manifest"
    _, dataset = bucket.loader(place, format, **how)
    dataset.save_manifest(manifest)
    bucket.taken()
    return manifest


@pytest.mark.parametrize("format", list(WRITERS))
def test_nothing_is_listed_and_no_footer_is_read(
    bucket: Served, tmp_path: Path, format: str
) -> None:
    manifest = saved(bucket, tmp_path, f"{format}/", format)
    assert bucket.taken().log == []
    loader, dataset = bucket.loader(f"{format}/", format, manifest=manifest)
    found = bucket.taken()
    assert not found.listings
    assert not found.heads
    if format == "arrow":  # how many rows there are stands in front of each batch
        assert all(request.body_bytes < 2000 for request in found.reads)
    else:
        assert found.log == []
    assert rows_of(loader) == list(range(3 * ROWS))
    assert rows_of(loader) == list(range(3 * ROWS))
    asked = bucket.taken()
    assert not asked.listings
    assert not asked.heads
    assert dataset.num_rows == 3 * ROWS


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "mix": 2, "lanes": 3}], ids=str)
def test_the_order_is_the_same_and_states_fit(
    bucket: Served, tmp_path: Path, options: dict[str, Any]
) -> None:
    options = {"batch_size": 70, "split_rows": 150, **options}
    manifest = saved(bucket, tmp_path, "parquet/")
    listed, _ = bucket.loader("parquet/", **options)
    given, _ = bucket.loader("parquet/", manifest=manifest, **options)
    assert rows_of(listed) == rows_of(given)
    for one, other in ((listed, given), (given, listed)):
        expected = iter(one)
        for _ in range(7):
            next(expected)
        other.load_state_dict(one.state_dict())
        assert rows_of(other) == [int(i) for batch in expected for i in batch["id"]]


def test_worker_processes_need_no_footer_either(bucket: Served, tmp_path: Path) -> None:
    manifest = saved(bucket, tmp_path, "parquet/")
    loader, _ = bucket.loader("parquet/", manifest=manifest, num_workers=2, batch_size=100)
    assert sorted(rows_of(loader)) == list(range(3 * ROWS))
    asked = bucket.taken()
    assert not asked.listings
    size = (bucket.folder / "parquet/0.parquet").stat().st_size
    assert not [r for r in asked.reads if r.range.endswith(f"-{size - 1}")]


def test_a_replaced_object_is_refused_when_it_is_read(bucket: Served, tmp_path: Path) -> None:
    manifest = saved(bucket, tmp_path, "replaced/")
    put(bucket.folder, "replaced/a.parquet", parquet(numbers(ROWS, 9000), 200))
    loader, _ = bucket.loader("replaced/", manifest=manifest)
    with pytest.raises(FileChangedError, match=r"replaced/a\.parquet"):
        rows_of(loader)


def test_a_deleted_object_is_missed_when_it_is_read(bucket: Served, tmp_path: Path) -> None:
    manifest = saved(bucket, tmp_path, "deleted/")
    (bucket.folder / "deleted/a.parquet").unlink()
    loader, _ = bucket.loader("deleted/", manifest=manifest)
    with pytest.raises(FileChangedError, match=r"deleted/a\.parquet vanished"):
        rows_of(loader)


def test_a_manifest_of_another_location_is_refused(bucket: Served, tmp_path: Path) -> None:
    manifest = saved(bucket, tmp_path, "parquet/")
    for other in ("hive/", "parquet/0.parquet", "parquet-more/", ""):
        with pytest.raises(OptionError, match="manifest of s3://manifests/parquet"):
            bucket.loader(other, manifest=manifest)
    with pytest.raises(OptionError, match="manifest of"):
        StructuredDataset(str(bucket.folder / "parquet"), manifest=manifest)
    bucket.loader("parquet", manifest=manifest)  # the slash at the end says nothing


def test_several_locations(bucket: Served, tmp_path: Path) -> None:
    places = [f"{bucket.bucket}/parquet/{part}.parquet" for part in (2, 0)]
    how: dict[str, Any] = {"storage_options": bucket.options}
    StructuredDataset(places, **how).save_manifest(tmp_path / "found")
    bucket.taken()
    dataset = StructuredDataset(places, manifest=tmp_path / "found", **how)
    assert bucket.taken().log == []
    assert [file.path for file in dataset.files] == sorted(places)
    with pytest.raises(OptionError, match="manifest of"):
        StructuredDataset(places[:1], manifest=tmp_path / "found", **how)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("text", "not a manifest"),
        ("empty", "not a manifest"),
        ("cut", "cut short"),
        ("no checksum", "save it again"),
        ("version", "one of another release: save it again"),
    ],
)
def test_what_is_no_manifest_is_refused(
    bucket: Served, tmp_path: Path, kind: str, said: str
) -> None:
    manifest = saved(bucket, tmp_path, "parquet/")
    whole = manifest.read_bytes()
    if kind == "text":
        manifest.write_text("path,size,etag\n")
    elif kind == "empty":
        manifest.write_bytes(b"")
    elif kind == "cut":
        manifest.write_bytes(whole[: len(whole) // 2])
    elif kind == "no checksum":
        manifest.write_bytes(whole[: whole.rindex(b"headrace.manifest")])
    else:
        manifest.write_bytes(whole.replace(b"headrace.manifest 3", b"headrace.manifest 2"))
    with pytest.raises(ReadError, match=rf"found\.manifest.*{said}"):
        bucket.loader("parquet/", manifest=manifest)


def damaged(whole: bytes, chance: random.Random) -> bytes:
    """A file of which something is different, missing or too much."""
    at = chance.randrange(len(whole))
    length = chance.choice([1, 1, 1, 8, 64, len(whole)])
    way = chance.choice(["flip", "flip", "zero", "cut", "delete", "insert", "last line"])
    if way == "last line":
        at = chance.randrange(whole.rindex(b"headrace.manifest"), len(whole))
        length = 1
    if way == "cut":
        return whole[:at]
    if way == "delete":
        return whole[:at] + whole[at + length :]
    if way == "insert":
        return whole[:at] + chance.randbytes(min(length, 64)) + whole[at:]
    part = whole[at : at + length]
    if way == "zero":
        return whole[:at] + bytes(len(part)) + whole[at + length :]
    changed = bytes([part[0] ^ (1 << chance.randrange(8))]) + part[1:]
    return whole[:at] + changed + whole[at + length :]


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    for part in range(3):
        put(tmp_path, f"data/{part}.parquet", parquet(numbers(ROWS, ROWS * part)))
    manifest = tmp_path / "found"
    StructuredDataset(tmp_path / "data").save_manifest(manifest)
    whole, chance = manifest.read_bytes(), random.Random(0)
    refused = 0
    while refused < 400:
        wrong = damaged(whole, chance)
        if wrong == whole:
            continue
        refused += 1
        manifest.write_bytes(wrong)
        with pytest.raises((ReadError, OptionError), match=r"found.*manifest"):
            StructuredDataset(tmp_path / "data", manifest=manifest)
    manifest.write_bytes(whole)
    given = StructuredDataset(tmp_path / "data", manifest=manifest)
    assert rows_of(given) == list(range(3 * ROWS))


def test_a_manifest_that_is_not_there(bucket: Served, tmp_path: Path) -> None:
    for missing in (tmp_path / "none", f"{bucket.bucket}/none"):
        with pytest.raises(NothingFoundError, match="none"):
            bucket.loader("parquet/", manifest=missing)


def test_a_manifest_may_lie_in_the_store(bucket: Served, tmp_path: Path) -> None:
    manifest = saved(bucket, tmp_path, "parquet/")
    put(bucket.folder, "about/parts.manifest", manifest.read_bytes())
    loader, _ = bucket.loader("parquet/", manifest=f"{bucket.bucket}/about/parts.manifest")
    found = bucket.taken()
    assert not found.listings
    assert {request.path for request in found.log} == {"/manifests/about/parts.manifest"}
    assert rows_of(loader) == list(range(3 * ROWS))


def test_a_manifest_is_not_saved_into_a_store(bucket: Served, tmp_path: Path) -> None:
    _, dataset = bucket.loader("parquet/")
    with pytest.raises(OptionError, match="s3://manifests/x"):
        dataset.save_manifest(f"{bucket.bucket}/x")
    with pytest.raises(OptionError, match="nowhere"):
        dataset.save_manifest(tmp_path / "nowhere" / "x")


def test_columns_and_filters_may_be_others(bucket: Served, tmp_path: Path) -> None:
    manifest = saved(bucket, tmp_path, "parquet/", columns=["id"], filters=[("id", "<", 50)])
    loader, dataset = bucket.loader("parquet/", manifest=manifest)
    assert bucket.taken().log == []
    assert dataset.schema.names == ["id", "x0", "x1", "x2"]
    assert rows_of(loader) == list(range(3 * ROWS))
    keep = [("id", ">=", 3 * ROWS - 100)]
    loader, _ = bucket.loader("parquet/", manifest=manifest, filters=keep, columns=["id", "x1"])
    assert rows_of(loader) == list(range(3 * ROWS - 100, 3 * ROWS))
    assert not bucket.taken().listings


@pytest.mark.parametrize("keep", [None, [("day", "=", 1)], [("lang", "=", "de"), ("id", ">", 9)]])
def test_hive_partitions(bucket: Served, tmp_path: Path, keep: Any) -> None:
    hive: dict[str, Any] = {"partitioning": "hive"}
    manifest = saved(bucket, tmp_path, "hive/", filters=[("day", "=", 0)], **hive)
    how = {"filters": keep, "output_format": "dict", "columns": ["id", "day"], **hive}
    listed, _ = bucket.loader("hive/", **how)
    given, _ = bucket.loader("hive/", manifest=manifest, **how)
    rows = [(i, day) for batch in given for i, day in zip(batch["id"], batch["day"], strict=True)]
    assert rows == [
        (i, day) for batch in listed for i, day in zip(batch["id"], batch["day"], strict=True)
    ]
    assert rows


def test_text_files(bucket: Served, tmp_path: Path) -> None:
    manifest = saved(bucket, tmp_path, "text/", "csv")
    loader, _ = bucket.loader("text/", "csv", manifest=manifest)
    assert not bucket.taken().listings
    assert rows_of(loader) == list(range(900))


def test_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in range(3):
        put(tmp_path, f"data/{part}.parquet", parquet(numbers(ROWS, ROWS * part)))
    listed = StructuredDataset(tmp_path / "data", shuffle=True)
    listed.save_manifest(tmp_path / "found")
    monkeypatch.setattr(os, "scandir", None)  # nothing is listed
    given = StructuredDataset(
        str(tmp_path / "data") + "/", shuffle=True, manifest=tmp_path / "found"
    )
    assert [file.path for file in given.files] == [file.path for file in listed.files]
    assert rows_of(given) == rows_of(listed)
    given.load_state_dict(listed.state_dict())
    put(tmp_path, "data/1.parquet", parquet(numbers(ROWS, 5000)))
    for on_error in ("raise", "skip"):
        with pytest.raises(FileChangedError, match=r"1\.parquet"):
            StructuredDataset(tmp_path / "data", manifest=tmp_path / "found", on_error=on_error)


def test_files_that_were_named(tmp_path: Path) -> None:
    """Only what was found in a directory has to have the right extension."""
    place = put(tmp_path, "data/odd.name", parquet(numbers(ROWS)))
    StructuredDataset(place).save_manifest(tmp_path / "found")
    assert rows_of(StructuredDataset(place, manifest=tmp_path / "found")) == list(range(ROWS))


def test_saving_replaces_a_manifest_whole(bucket: Served, tmp_path: Path) -> None:
    manifest = saved(bucket, tmp_path, "parquet/")
    manifest.write_text("old")
    saved(bucket, tmp_path, "parquet/")
    bucket.loader("parquet/", manifest=manifest)
    assert [path.name for path in tmp_path.iterdir()] == ["found.manifest"]


def test_beside_a_filesystem_of_the_users_own(tmp_path: Path) -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    files.pipe("/manifests-test/a.parquet", parquet(numbers(ROWS)))
    try:
        dataset = StructuredDataset("/manifests-test", filesystem=files)
        dataset.save_manifest(tmp_path / "found")
        given = StructuredDataset("/manifests-test", filesystem=files, manifest=tmp_path / "found")
        assert rows_of(given) == list(range(ROWS))
    finally:
        files.rm("/manifests-test", recursive=True)
