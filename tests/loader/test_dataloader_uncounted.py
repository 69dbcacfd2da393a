"""States of data whose rows are not counted before they are read: filters, lines of text, JSON."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from rank_scripts.rank_processes import run_ranks
from rank_scripts.uncounted_ranks import Case, read_all
from small_files import all_ids, write_csv, write_parquet

from headrace import SkippedDataWarning, StatefulLoader, StructuredDataset, merge_states

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

ROWS = 400


@pytest.fixture(scope="module")
def json_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an array of objects in one folder, and lines of objects in another."""
    folder = tmp_path_factory.mktemp("json")
    # Field names are arbitrary, the empty name included.
    rows = [{"id": row, "name": f"row {row}", "": row / 4} for row in range(ROWS)]
    parts = [rows[: ROWS // 2], rows[ROWS // 2 :]]
    for number, part in enumerate(parts):
        (folder / f"{number}.json").write_text(json.dumps(part))
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return folder


JSON: Mapping[str, dict[str, Any]] = {
    "json": {"format": "json"},
    "jsonl": {"format": "jsonl", "split_bytes": 3000},
    "jsonl filtered": {"format": "jsonl", "split_bytes": 3000, "filters": [("id", "<", 390)]},
}


def json_loader(folder: Path, kind: str, **options: Any) -> StatefulLoader:
    given = {"batch_size": 16, **JSON[kind], **options}
    return StructuredDataset.create_dataloader(folder, **given)[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", JSON)
def test_json_has_a_state_after_a_loop_that_was_left(
    json_files: Path, kind: str, workers: int
) -> None:
    loader = json_loader(json_files, kind, num_workers=workers)
    ids: list[int] = []
    for step, batch in enumerate(loader, start=1):
        ids += all_ids([batch])
        if step == 5:
            break
    again = json_loader(json_files, kind, num_workers=workers)
    again.load_state_dict(loader.state_dict())
    ids += all_ids(again)
    assert sorted(ids) == list(range(390 if "filtered" in kind else ROWS))


@pytest.mark.parametrize("kind", JSON)
def test_ranks_of_json_go_on_from_the_state_of_another_rank(json_files: Path, kind: str) -> None:
    ranks = [
        json_loader(json_files, kind, num_workers=0, rank=rank, world_size=2, even=False)
        for rank in range(2)
    ]
    ids = [row for loader in ranks for row in all_ids(islice(iter(loader), 4))]
    for rank, loader in enumerate(ranks):
        state = ranks[1 - rank].state_dict()
        again = json_loader(json_files, kind, num_workers=0, rank=rank, world_size=2, even=False)
        again.load_state_dict(state)
        assert again.state_dict()["lanes"] == loader.state_dict()["lanes"]
        ids += all_ids(again)
    assert sorted(ids) == list(range(390 if "filtered" in kind else ROWS))


# --- batches that are counted again


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the same rows in several formats; some lines contain a value that cannot be read."""
    root = tmp_path_factory.mktemp("data")
    broken = write_csv(root / "broken")
    text = (broken / "part-00.csv").read_text()
    assert '\n120,30,"row 120"\n' in text
    (broken / "part-00.csv").write_text(text.replace("\n120,30,", "\n120,thirty,"))
    return {
        "parquet": write_parquet(root / "parquet"),
        "csv": write_csv(root / "csv"),
        "broken": broken,
    }


KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "filtered": ("parquet", {"filters": [("id", "not in", [5, 300])], "split_rows": 70}),
    "filtered and mixed": (
        "parquet",
        {"filters": [("x", "<", 200)], "split_rows": 50, "mix": 3, "shuffle": True},
    ),
    "lines": ("csv", {"format": "csv", "split_bytes": 1500}),
    "skipped": ("parquet", {"on_error": "skip", "split_rows": 70}),
    "skipped lines": (
        "broken",
        {
            "format": "csv",
            "schema": pa.schema({"id": pa.int64(), "x": pa.float32(), "name": pa.string()}),
            "format_options": {"read_options": pa.csv.ReadOptions(block_size=1000)},
            "split_bytes": 1500,
            "on_error": "skip",
        },
    ),
}


def ranks_of(
    folders: dict[str, Path], kind: str, ranks: int, state: Any = None, **options: Any
) -> list[StatefulLoader]:
    """Return the loaders of all ranks, in one process; all continue from the same state."""
    name, given = KINDS[kind]
    loaders = []
    for rank in range(ranks):
        loader, _ = StructuredDataset.create_dataloader(
            folders[name],
            **{"num_workers": 0, "even": False, **given, **options},
            rank=rank,
            world_size=ranks,
        )
        if state is not None:
            loader.load_state_dict(state)
        loaders.append(loader)
    return loaders


def take(loaders: list[StatefulLoader], steps: int | None = None) -> list[int]:
    """Return the rows of the next batches of all ranks."""
    return [row for loader in loaders for row in all_ids(islice(iter(loader), steps))]


@pytest.mark.filterwarnings("ignore::headrace.SkippedDataWarning")
@pytest.mark.parametrize("sizes", [(7, 16, 16), (7, 3, 20)])
@pytest.mark.parametrize("kind", KINDS)
def test_another_batch_size_goes_on_from_the_state_of_one_rank(
    folders: dict[str, Path], kind: str, sizes: tuple[int, int, int]
) -> None:
    """Check that counting the batches of other ranks uses the batch size of the state."""
    everything = take(ranks_of(folders, kind, 1, batch_size=50))
    first = ranks_of(folders, kind, 2, batch_size=sizes[0])
    ids = take(first, 9)
    second = ranks_of(folders, kind, 2, first[0].state_dict(), batch_size=sizes[1])
    ids += take(second, 6)
    third = ranks_of(folders, kind, 3, second[1].state_dict(), batch_size=sizes[2])
    ids += take(third)
    assert sorted(ids) == sorted(everything)


def test_lines_that_cannot_be_read_are_skipped(folders: dict[str, Path]) -> None:
    """Check that the test above has lines to skip."""
    loaders = ranks_of(folders, "skipped lines", 1, batch_size=50)
    with pytest.warns(SkippedDataWarning, match="thirty"):
        rows = take(loaders)
    assert set(rows) < set(range(1154))


# --- another number of ranks


KEEP = np.random.default_rng(5).random(12_000) < 0.5


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 12,000 rows with lines of similar length, of which a filter keeps a random half."""
    folder = tmp_path_factory.mktemp("numbered")
    table = pa.table({"id": 100_000 + np.arange(12_000), "keep": KEEP.astype(np.int32)})
    for name in ("single", "groups", "lines", "compressed"):
        (folder / name).mkdir()
    pq.write_table(table, folder / "single" / "rows.parquet", row_group_size=1000)
    for number in range(4):
        part = table.slice(number * 3000, 3000)
        pq.write_table(part, folder / "groups" / f"{number}.parquet", row_group_size=250)
        pa.csv.write_csv(part, folder / "lines" / f"{number}.csv")
        compressed = gzip.compress((folder / "lines" / f"{number}.csv").read_bytes())
        (folder / "compressed" / f"{number}.csv.gz").write_bytes(compressed)
    return folder


KEPT: dict[str, Any] = {"filters": [("keep", "==", 1)]}
RESIZED: Mapping[str, tuple[str, int, int, dict[str, Any]]] = {
    "1 to 4, one chunk": ("single", 1, 4, KEPT),
    "8 to 7": ("groups", 8, 7, {"split_rows": 150, "shuffle": True, **KEPT}),
    "8 to 7, large chunks": ("groups", 8, 7, KEPT),
    "8 to 16, mixed": ("groups", 8, 16, {"split_rows": 150, "shuffle": True, "mix": 4, **KEPT}),
    "8 to 7, lines": ("lines", 8, 7, {"format": "csv", "split_bytes": 6000}),
    "8 to 16, lines mixed": (
        "lines",
        8,
        16,
        {"format": "csv", "split_bytes": 3000, "shuffle": True, "mix": 4},
    ),
    "1 to 4, whole files": ("compressed", 1, 4, {"format": "csv"}),
}


@pytest.mark.parametrize("case", RESIZED)
def test_ranks_that_take_the_same_steps_leave_out_few_rows(numbered: Path, case: str) -> None:
    """Allow one batch a rank, and random differences between ranks."""
    name, before, after, options = RESIZED[case]
    size, ids = 16, []
    given = {"batch_size": size, "num_workers": 0, "even": False, **options}

    def ranks(count: int) -> list[StatefulLoader]:
        make = StructuredDataset.create_dataloader
        return [make(numbered / name, rank=r, world_size=count, **given)[0] for r in range(count)]

    first = ranks(before)
    ids += take(first, 3)
    state = merge_states([loader.state_dict() for loader in first])
    found = []
    for loader in ranks(after):
        loader.load_state_dict(state)
        found.append([all_ids([batch]) for batch in loader])
    rows = [row for batches in found for batch in batches for row in batch]
    assert len({*ids, *rows}) == len(ids) + len(rows)
    assert len(ids) + len(rows) == (12_000 if "format" in options else KEEP.sum())
    together = min(map(len, found))
    left_out = [row for batches in found for batch in batches[together:] for row in batch]
    chance = len(rows) ** 0.5 * after**0.5
    assert len(left_out) <= after * size + chance


def state_after(folder: Path, steps: int, options: dict[str, Any]) -> dict[str, Any]:
    loader, _ = StructuredDataset.create_dataloader(folder, num_workers=0, **options)
    take([loader], steps)
    return loader.state_dict()


RankResult = tuple[list[list[int]], str, int, int]
"""batches, warnings, epoch and padded rows of a rank"""


@pytest.fixture(scope="module")
def of_four_ranks(numbered: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each of four ranks reads; the ranks are processes that agree on their steps."""
    rows, lines = numbered / "single", numbered / "lines"
    whole_file = numbered / "compressed" / "0.csv.gz"
    filtered = {"batch_size": 16, **KEPT}
    short = {"batch_size": 16, "format": "csv", "filters": [("id", "<", 100_033)]}
    one_file = {"batch_size": 16, "format": "csv", "filters": [("id", "<", 100_100)]}
    cases: dict[str, Case] = {}
    for even in ("drop", "pad"):
        cases |= {
            f"much is left, {even}": (
                rows,
                state_after(rows, 3, filtered),
                {"even": even, **filtered},
            ),
            f"a row is left, {even}": (
                lines,
                state_after(lines, 2, short),
                {"even": even, **short},
            ),
            f"from the start, {even}": (whole_file, None, {"even": even, **one_file}),
        }
    return run_ranks(partial(read_all, cases=cases), 4, tmp_path_factory.mktemp("ranks"))


def rows_and_steps(ranks: list[RankResult]) -> tuple[list[int], set[int]]:
    """Return the rows of all ranks, and their numbers of steps."""
    rows = [row for batches, *_ in ranks for batch in batches for row in batch]
    return rows, {len(batches) for batches, *_ in ranks}


def test_more_ranks_share_what_one_has_left(of_four_ranks: list[dict[str, Any]]) -> None:
    left = set(np.flatnonzero(KEEP)[48:] + 100_000)
    rows, steps = rows_and_steps(
        [rank_result["much is left, drop"] for rank_result in of_four_ranks]
    )
    assert len(steps) == 1
    assert len(set(rows)) == len(rows)
    assert set(rows) <= left
    assert len(left) - len(rows) <= 4 * 16
    padded = [rank_result["much is left, pad"] for rank_result in of_four_ranks]
    rows, steps = rows_and_steps(padded)
    assert len(steps) == 1
    assert set(rows) == left
    assert len(rows) - len(left) == sum(rank_result[3] for rank_result in padded) <= 4 * 16


def test_a_rest_with_fewer_rows_than_ranks(of_four_ranks: list[dict[str, Any]]) -> None:
    dropped = [rank_result["a row is left, drop"] for rank_result in of_four_ranks]
    assert rows_and_steps(dropped) == ([], {0})
    assert all(
        "no rank takes a step" in message and 'even="pad"' in message for _, message, *_ in dropped
    )
    assert [epoch for _, _, epoch, _ in dropped] == [1, 1, 1, 1]
    padded = [rank_result["a row is left, pad"] for rank_result in of_four_ranks]
    assert rows_and_steps(padded) == ([100_032] * 4, {1})
    assert sum(rank_result[3] for rank_result in padded) == 3


def test_an_epoch_of_which_some_ranks_get_nothing(of_four_ranks: list[dict[str, Any]]) -> None:
    """Check a file that cannot be divided, which goes to one rank."""
    for rank_result in of_four_ranks:
        assert "no rank takes a step" in rank_result["from the start, drop"]
        assert 'even="pad"' in rank_result["from the start, drop"]
    rows, steps = rows_and_steps(
        [rank_result["from the start, pad"] for rank_result in of_four_ranks]
    )
    assert steps == {7}
    assert set(rows) == set(range(100_000, 100_100))
