"""The cache on disk: nothing is fetched twice, nothing wrong is served, and it stays small."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from segments_held import segments_in, size_on_disk
from served_folders import Served, numbers, parquet, put, rows_of, served
from warm_interpreters import run_warm

from headrace.errors import FileChangedError, OptionError

ROWS = 4000


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("caching") / "caching"
    for part in range(3):
        put(folder, f"parts/{part}.parquet", parquet(numbers(ROWS, ROWS * part), 1000))
    put(folder, "größe/日本 語=1/a b+c%.parquet", parquet(numbers(100)))
    put(folder, "other/one.parquet", parquet(numbers(ROWS), 1000))
    with served(folder) as bucket:
        yield bucket


@pytest.fixture(autouse=True)
def fresh_log(bucket: Served) -> None:
    bucket.taken()


@pytest.mark.parametrize("columns", [None, ["id", "x1"]])
def test_the_second_epoch_makes_no_request(
    bucket: Served, tmp_path: Path, columns: list[str] | None
) -> None:
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path, columns=columns)
    assert rows_of(loader) == list(range(3 * ROWS))
    first = bucket.taken()
    assert first.reads
    assert rows_of(loader) == list(range(3 * ROWS))
    assert bucket.taken().log == []
    stats = loader.stats()
    assert stats["requests"] == len(first.log)
    assert stats["fetched_bytes"] == first.bytes
    # The end of a file that was fetched with its footer is not fetched again either.
    assert 0 < stats["cached_bytes"] <= 2 * stats["fetched_bytes"]


@pytest.mark.parametrize("how", [{}, {"shuffle": True, "split_rows": 1000}, {"num_workers": 2}])
def test_a_cache_of_half_of_the_data_saves_half_of_the_bytes(
    bucket: Served, tmp_path: Path, how: dict[str, Any]
) -> None:
    whole = sum(path.stat().st_size for path in (bucket.folder / "parts").iterdir())
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path, cache_bytes=whole // 2, **how)
    assert sorted(rows_of(loader)) == list(range(3 * ROWS))
    first = bucket.taken().bytes
    saved = loader.stats()["cached_bytes"]
    assert sorted(rows_of(loader)) == list(range(3 * ROWS))
    assert 0.4 * first < bucket.taken().bytes < 0.6 * first
    assert 0.4 * first < loader.stats()["cached_bytes"] - saved < 0.6 * first


def test_worker_processes_share_it(bucket: Served, tmp_path: Path) -> None:
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path, num_workers=2, lanes=2)
    assert sorted(rows_of(loader)) == list(range(3 * ROWS))
    assert bucket.taken().reads
    assert sorted(rows_of(loader)) == list(range(3 * ROWS))
    assert bucket.taken().log == []


READ_ALL = """
import sys
from headrace import StructuredDataset
place, endpoint, cache = sys.argv[1:]
loader, _ = StructuredDataset.create_dataloader(
    place,
    num_workers=0,
    cache_dir=cache,
    storage_options={"key": "any", "secret": "any", "endpoint_url": endpoint},
)
print(sum(int(batch["id"].sum()) for batch in loader))
"""


def test_another_process_reads_nothing_again(bucket: Served, tmp_path: Path) -> None:
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path / "cache")
    total = sum(rows_of(loader))
    assert bucket.taken().reads
    place = [f"{bucket.bucket}/parts", bucket.proxy.url, str(tmp_path / "cache")]
    done = run_warm("-c", READ_ALL, *place)
    assert (done.stdout, done.stderr) == (f"{total}\n", "")
    asked = bucket.taken()
    assert asked.reads == []  # not even footers
    assert asked.listings


def test_other_columns_fetch_only_what_is_not_there(bucket: Served, tmp_path: Path) -> None:
    rows_of(bucket.loader("parts/", cache_dir=tmp_path, columns=["id", "x1"])[0])
    first = bucket.taken()
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path)
    assert rows_of(loader) == list(range(3 * ROWS))
    second = bucket.taken()
    whole = sum(path.stat().st_size for path in (bucket.folder / "parts").iterdir())
    assert first.bytes + second.bytes <= 1.02 * whole + 3 * (64 << 10)
    rows_of(loader)
    assert bucket.taken().log == []


def test_a_replaced_object_is_not_served_from_the_old_one(bucket: Served, tmp_path: Path) -> None:
    name = "other/one.parquet"

    def replace_by_rows_from(first: int) -> None:
        """By an object of the same size."""
        plain = {"compression": "none", "use_dictionary": False}
        put(bucket.folder, name, parquet(numbers(ROWS, first), 1000, **plain))
        sizes.add((bucket.folder / name).stat().st_size)

    sizes: set[int] = set()
    replace_by_rows_from(0)
    old, _ = bucket.loader(name, cache_dir=tmp_path, columns=["id", "x0"])
    assert rows_of(old) == list(range(ROWS))
    replace_by_rows_from(70_000)
    new, _ = bucket.loader(name, cache_dir=tmp_path, columns=["id", "x0"])
    assert rows_of(new) == list(range(70_000, 70_000 + ROWS))
    # What has been fetched of the old one is still that; what has not is no longer there.
    assert rows_of(old) == list(range(ROWS))
    rest, _ = bucket.loader(name, cache_dir=tmp_path)
    replace_by_rows_from(90_000)
    assert len(sizes) == 1
    with pytest.raises(FileChangedError, match=r"one\.parquet"):
        rows_of(rest)


def test_broken_segments_are_fetched_again(bucket: Served, tmp_path: Path) -> None:
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path)
    rows_of(loader)
    bucket.taken()
    for index, path in enumerate(sorted(segments_in(tmp_path))):
        data = bytearray(path.read_bytes())
        if index % 4 == 0:
            path.write_bytes(data[: len(data) // 2])
        elif index % 4 == 1:
            path.write_bytes(b"")
        elif index % 4 == 2:
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path)
    assert rows_of(loader) == list(range(3 * ROWS))
    assert bucket.taken().reads
    assert rows_of(loader) == list(range(3 * ROWS))
    assert bucket.taken().reads == []


def test_names_of_all_kinds(bucket: Served, tmp_path: Path) -> None:
    cache = tmp_path / "schöner Ort 日本" / "mit Ordner"
    loader, _ = bucket.loader("größe/日本 語=1/", cache_dir=cache, partitioning=None)
    assert rows_of(loader) == list(range(100))
    assert rows_of(loader) == list(range(100))
    assert segments_in(cache)
    bucket.taken()
    loader, _ = bucket.loader("größe/日本 語=1/", cache_dir=cache, partitioning=None)
    assert rows_of(loader) == list(range(100))
    assert bucket.taken().reads == []


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(
    bucket: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody puts a file in its place: nobody can write there, not even root."""
    cache = tmp_path / "cache"
    loader, _ = bucket.loader("parts/", cache_dir=cache)
    shutil.rmtree(cache)
    cache.write_text("in the way")
    assert rows_of(loader) == list(range(3 * ROWS))
    assert "not cached" in caplog.text


def test_a_cache_that_was_removed_is_made_again(bucket: Served, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    loader, _ = bucket.loader("parts/", cache_dir=cache)
    rows_of(loader)
    shutil.rmtree(cache)
    assert rows_of(loader) == list(range(3 * ROWS))
    bucket.taken()
    assert rows_of(loader) == list(range(3 * ROWS))
    assert bucket.taken().reads == []


def test_a_folder_without_permission_is_no_reason_to_fail(bucket: Served, tmp_path: Path) -> None:
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path / "cache")
    os.chmod(tmp_path / "cache", 0o500)
    try:
        assert rows_of(loader) == list(range(3 * ROWS))
        assert rows_of(loader) == list(range(3 * ROWS))
    finally:
        os.chmod(tmp_path / "cache", 0o700)


def test_a_cache_that_may_only_be_read_serves_what_it_has(
    bucket: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path / "cache")
    rows_of(loader)
    bucket.taken()

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", refuse)
    assert rows_of(loader) == list(range(3 * ROWS))
    assert bucket.taken().reads == []


def test_a_tiny_limit_caches_what_fits(bucket: Served, tmp_path: Path) -> None:
    loader, _ = bucket.loader("parts/", cache_dir=tmp_path, cache_bytes=1000)
    assert rows_of(loader) == list(range(3 * ROWS))
    assert size_on_disk(tmp_path) <= 1000
    bucket.taken()
    assert rows_of(loader) == list(range(3 * ROWS))
    assert bucket.taken().reads


def test_options_that_cannot_be(bucket: Served, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for options in (
        {"cache_dir": tmp_path / "file"},
        {"cache_dir": 7},
        {"cache_bytes": "1GB"},
        {"cache_dir": tmp_path, "cache_bytes": "many"},
        {"cache_dir": tmp_path, "cache_bytes": -1},
    ):
        with pytest.raises(OptionError, match="cache_"):
            bucket.loader("parts/", **options)
    assert bucket.taken().log == []
