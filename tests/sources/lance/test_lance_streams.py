"""Lance datasets through the loader: every live row once, and versions in states."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from lance_elsewhere import Elsewhere

from headrace import LanceDataset
from headrace.errors import NothingFoundError, OptionError, ReadError, StateMismatchError


def numbered(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    return pa.table({"id": list(numbers), "text": [f"row {number}" for number in numbers]})


def ids_of(uri: str, *, stop: int | None = None, state: Any = None, **options: Any) -> Any:
    """Batches of ids, up to one of them, and the state there; in a process that may use Lance."""
    options = {"num_workers": 0, "batch_size": 10, "columns": ["id"], **options}
    loader, dataset = LanceDataset.create_dataloader(uri, **options)
    if state is not None:
        loader.load_state_dict(state)
    batches: list[list[int]] = []
    for batch in loader:
        batches.append(batch["id"].tolist())
        if len(batches) == stop:
            break
    return batches, loader.state_dict(), dataset.version


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def write_history(elsewhere: Elsewhere, uri: Path) -> Path:
    """Version 1: 0 to 99. 2: 0 to 149. 3: without multiples of 4."""
    elsewhere.write(uri, numbered(0, 100))
    elsewhere.write(uri, numbered(100, 150), mode="append")
    elsewhere.change(uri, "delete", "id % 4 = 0")
    return uri


@pytest.fixture
def history(elsewhere: Elsewhere, tmp_path: Path) -> Path:
    return write_history(elsewhere, tmp_path / "history.lance")


LIVE = [number for number in range(150) if number % 4]


def test_one_large_fragment_is_shared_by_workers(elsewhere: Elsewhere, tmp_path: Path) -> None:
    uri = tmp_path / "large.lance"
    elsewhere.write(uri, numbered(0, 30_000))
    elsewhere.change(uri, "delete", "id % 3 = 1")
    live = [number for number in range(30_000) if number % 3 != 1]
    options: Any = {"batch_size": 128, "lanes": 4, "shuffle": True, "split_rows": 700}
    loader, dataset = LanceDataset.create_dataloader(uri, columns=["id"], num_workers=2, **options)
    sizes = [sum(one.row_range.length for one in split.file_splits) for split in dataset.splits]
    assert len(dataset.files) == 1
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) <= 128
    first, second = ([batch["id"].tolist() for batch in loader] for _ in range(2))
    assert sorted(flat(first)) == sorted(flat(second)) == live
    assert first != second
    alone, _, _ = elsewhere.call(ids_of, str(uri), **options)
    assert alone == first


def test_a_copy_goes_on_from_a_state(elsewhere: Elsewhere, history: Path, tmp_path: Path) -> None:
    """The names of its files tell a copy from another table of the same rows."""
    begun, state, _ = elsewhere.call(ids_of, str(history), stop=3)
    copy = shutil.copytree(history, tmp_path / "copy" / "history.lance")
    rest, _, _ = elsewhere.call(ids_of, str(copy), state=state)
    assert flat(begun) + flat(rest) == LIVE
    other = tmp_path / "other" / "history.lance"
    other.parent.mkdir()
    write_history(elsewhere, other)
    with pytest.raises(StateMismatchError, match="files"):
        elsewhere.call(ids_of, str(other), state=state)


def test_ranks_share_the_rows(elsewhere: Elsewhere, history: Path) -> None:
    shares = [
        flat(elsewhere.call(ids_of, str(history), rank=rank, world_size=2, even=False)[0])
        for rank in range(2)
    ]
    assert sorted(shares[0] + shares[1]) == LIVE
    assert all(len(share) > 50 for share in shares)


def test_filters_and_columns(elsewhere: Elsewhere, history: Path) -> None:
    wanted = ds.field("text").isin(["row 5", "row 101", "row 8"])
    batches, _, _ = elsewhere.call(ids_of, str(history), filters=wanted)
    assert flat(batches) == [5, 101]


def test_a_state_goes_on_in_its_version(elsewhere: Elsewhere, history: Path) -> None:
    options = {"shuffle": True, "split_rows": 20}
    whole, _, version = elsewhere.call(ids_of, str(history), **options)
    begun, state, _ = elsewhere.call(ids_of, str(history), stop=4, **options)
    assert version == 3
    elsewhere.write(history, numbered(150, 200), mode="append")
    rest, _, version = elsewhere.call(ids_of, str(history), state=state, **options)
    assert version == 3
    assert begun + rest == whole
    assert sorted(flat(whole)) == LIVE


def test_a_state_goes_on_in_a_copy_elsewhere(elsewhere: Elsewhere, history: Path) -> None:
    whole, _, _ = elsewhere.call(ids_of, str(history))
    begun, state, _ = elsewhere.call(ids_of, str(history), stop=4)
    moved = history.rename(history.with_name("moved.lance"))
    rest, _, _ = elsewhere.call(ids_of, str(moved), state=state)
    assert begun + rest == whole


def test_a_state_of_a_dataset_that_was_written_anew(elsewhere: Elsewhere, history: Path) -> None:
    """With as many rows, files of the same sizes and the same versions."""
    _, state, _ = elsewhere.call(ids_of, str(history), stop=4)
    shutil.rmtree(history)
    write_history(elsewhere, history)
    with pytest.raises(StateMismatchError, match="the files"):
        elsewhere.call(ids_of, str(history), state=state)


def test_a_state_of_a_version_that_is_gone(elsewhere: Elsewhere, history: Path) -> None:
    _, state, _ = elsewhere.call(ids_of, str(history), stop=2)
    elsewhere.write(history, numbered(0, 5), mode="overwrite")
    elsewhere.change(history, "cleanup_old_versions", timedelta(0))
    with pytest.raises(NothingFoundError, match=r"history\.lance has no version .* 3: "):
        elsewhere.call(ids_of, str(history), state=state)


def test_refreshing_goes_on_with_the_newest_version(elsewhere: Elsewhere, history: Path) -> None:
    dataset = LanceDataset(history, version=None, batch_size=10)
    assert (dataset.version, dataset.num_rows) == (3, len(LIVE))
    assert dataset.refresh() == 3
    elsewhere.write(history, numbered(150, 160), mode="append")
    assert dataset.version == dataset.backend.version == 3
    assert dataset.refresh() == 4
    assert (dataset.version, dataset.num_rows) == (4, len(LIVE) + 10)
    assert dataset.backend.num_rows == len(LIVE) + 10


def moving_tag(uri: str) -> list[Any]:
    import lance

    tags = lance.dataset(uri).tags
    tags.create("mine", 2)
    fixed, tagged = LanceDataset(uri, version=1), LanceDataset(uri, version="mine")
    seen = [fixed.refresh(), fixed.num_rows, tagged.version, tagged.num_rows]
    tags.update("mine", 3)
    return [*seen, tagged.version, tagged.refresh()]


def test_versions_stay_and_tags_move_when_they_are_refreshed(
    elsewhere: Elsewhere, history: Path
) -> None:
    assert elsewhere.call(moving_tag, str(history)) == [1, 100, 2, 150, 2, 3]


def skipping(uri: str) -> tuple[list[int], Mapping[str, Any]]:
    loader, _ = LanceDataset.create_dataloader(
        uri, columns=["id"], num_workers=0, on_error="skip", batch_size=10
    )
    with pytest.warns(UserWarning, match="fragment 0"):
        ids = [number for batch in loader for number in batch["id"].tolist()]
    return ids, loader.stats()


def test_a_damaged_fragment_is_named_or_left_out(elsewhere: Elsewhere, history: Path) -> None:
    first = LanceDataset(history).backend.shard_etags[0]
    (history / "data" / str(first)).write_bytes(b"nothing of use")
    with pytest.raises(ReadError, match=r"cannot be read: .*fragment 0 \(data/"):
        elsewhere.call(ids_of, str(history))
    ids, stats = elsewhere.call(skipping, str(history))
    assert ids == [number for number in LIVE if number >= 100]
    assert len(stats["skipped_chunks"]) == 1
    assert "fragment 0" in stats["skipped_chunks"][0]


def test_options_that_would_do_nothing_are_refused(history: Path) -> None:
    with pytest.raises(OptionError, match="cache_dir has no effect on Lance"):
        LanceDataset(history, cache_dir="/tmp/cache")
