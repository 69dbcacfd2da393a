"""Resuming from a state taken among rows that are repeated to keep ranks in step."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import RoundRobinSplitStrategy, StatefulLoader, StructuredDataset, merge_states


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write files of which one has far more rows: whole files then make uneven lanes."""
    folder = tmp_path_factory.mktemp("uneven")
    for number, rows in enumerate((50, 900, 70)):
        ids = pa.array(range(number * 1000, number * 1000 + rows))
        pq.write_table(pa.table({"id": ids}), folder / f"{number}.parquet", row_group_size=40)
    return folder


def loader_of(folder: Path, rank: int, ranks: int = 2, **options: object) -> StatefulLoader:
    loader, _ = StructuredDataset.create_dataloader(
        folder,
        batch_size=32,
        even="pad",
        rank=rank,
        world_size=ranks,
        num_workers=0,
        split_strategy=RoundRobinSplitStrategy(),
        **options,  # type: ignore[arg-type]
    )
    return loader


def ids_of(loader: StatefulLoader) -> list[list[int]]:
    return [batch["id"].tolist() for batch in loader]


@pytest.mark.parametrize("rank", [0, 1])
def test_every_position_goes_on_also_among_repeated_rows(uneven: Path, rank: int) -> None:
    whole = ids_of(loader_of(uneven, rank))
    assert len(whole) == len(ids_of(loader_of(uneven, 1 - rank)))
    taking = loader_of(uneven, rank)
    for step, _ in enumerate(taking, start=1):
        if step == len(whole):
            break
        again = loader_of(uneven, rank)
        again.load_state_dict(taking.state_dict())
        assert ids_of(again) == whole[step:], step


@pytest.mark.parametrize("step", [1, 6, 15, 27])
def test_another_number_of_ranks_reads_what_is_left_once(uneven: Path, step: int) -> None:
    ids_before: list[int] = []
    states = []
    for rank in range(2):
        loader = loader_of(uneven, rank)
        for number, batch in enumerate(loader, start=1):
            ids_before += batch["id"].tolist()
            if number == step:
                states.append(loader.state_dict())
                break
    rest: list[int] = []
    for rank in range(3):
        again = loader_of(uneven, rank, ranks=3)
        again.load_state_dict(merge_states(states))
        rest += [value for batch in ids_of(again) for value in batch]
    every = {n * 1000 + i for n, rows in enumerate((50, 900, 70)) for i in range(rows)}
    assert set(ids_before) | set(rest) == every
    assert not set(ids_before) & set(rest)
