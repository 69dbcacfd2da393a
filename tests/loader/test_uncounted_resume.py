"""States of data whose rows are not counted before they are read: filters, lines of text, JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from small_files import all_ids, write_csv, write_parquet

from headrace import SkippedDataWarning, StatefulLoader, StructuredDataset

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

ROWS = 400


@pytest.fixture(scope="module")
def json_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An array of objects in one folder, lines of objects in another."""
    folder = tmp_path_factory.mktemp("json")
    # A field may have any name, also none.
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
    seen: list[int] = []
    for step, batch in enumerate(loader, start=1):
        seen += all_ids([batch])
        if step == 5:
            break
    again = json_loader(json_files, kind, num_workers=workers)
    again.load_state_dict(loader.state_dict())
    seen += all_ids(again)
    assert sorted(seen) == list(range(390 if "filtered" in kind else ROWS))


@pytest.mark.parametrize("kind", JSON)
def test_ranks_of_json_go_on_from_the_state_of_another_rank(json_files: Path, kind: str) -> None:
    ranks = [
        json_loader(json_files, kind, num_workers=0, rank=rank, world_size=2, even=False)
        for rank in range(2)
    ]
    seen = [row for loader in ranks for row in all_ids(islice(iter(loader), 4))]
    for rank, loader in enumerate(ranks):
        state = ranks[1 - rank].state_dict()
        again = json_loader(json_files, kind, num_workers=0, rank=rank, world_size=2, even=False)
        again.load_state_dict(state)
        assert again.state_dict()["lanes"] == loader.state_dict()["lanes"]
        seen += all_ids(again)
    assert sorted(seen) == list(range(390 if "filtered" in kind else ROWS))


# --- batches that are counted again


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same rows in several formats; of some lines one value cannot be read."""
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
    """The loaders of all ranks, in one process; all of them go on from the same state."""
    name, given = KINDS[kind]
    made = []
    for rank in range(ranks):
        loader, _ = StructuredDataset.create_dataloader(
            folders[name],
            **{"num_workers": 0, "even": False, **given, **options},
            rank=rank,
            world_size=ranks,
        )
        if state is not None:
            loader.load_state_dict(state)
        made.append(loader)
    return made


def take(loaders: list[StatefulLoader], steps: int | None = None) -> list[int]:
    """The rows of the next batches of all ranks."""
    return [row for loader in loaders for row in all_ids(islice(iter(loader), steps))]


@pytest.mark.filterwarnings("ignore::headrace.SkippedDataWarning")
@pytest.mark.parametrize("sizes", [(7, 16, 16), (7, 3, 20)])
@pytest.mark.parametrize("kind", KINDS)
def test_another_batch_size_goes_on_from_the_state_of_one_rank(
    folders: dict[str, Path], kind: str, sizes: tuple[int, int, int]
) -> None:
    """The batches of other ranks are as large as they were when they were taken."""
    everything = take(ranks_of(folders, kind, 1, batch_size=50))
    first = ranks_of(folders, kind, 2, batch_size=sizes[0])
    seen = take(first, 9)
    second = ranks_of(folders, kind, 2, first[0].state_dict(), batch_size=sizes[1])
    seen += take(second, 6)
    third = ranks_of(folders, kind, 3, second[1].state_dict(), batch_size=sizes[2])
    seen += take(third)
    assert sorted(seen) == sorted(everything)


def test_lines_that_cannot_be_read_are_skipped(folders: dict[str, Path]) -> None:
    """Else the test above would have nothing to skip."""
    loaders = ranks_of(folders, "skipped lines", 1, batch_size=50)
    with pytest.warns(SkippedDataWarning, match="thirty"):
        rows = take(loaders)
    assert set(rows) < set(range(1154))
