"""States of data whose rows are not counted before they are read: filters, lines of text, JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from small_files import all_ids

from headrace import StatefulLoader, StructuredDataset

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
