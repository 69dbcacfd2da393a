"""Backends as sources of the loader: every row once, in order, resumed, shared and filtered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pytest
import torch

import headrace
from headrace import (
    ArrayRecordDataset,
    ArrowDataset,
    OptionError,
    SkippedDataWarning,
    StructuredDataset,
)
from headrace.loader import TabularDataset
from headrace.testing import ids_of
from headrace.write import write_array_record

ROWS = 5_000


def table() -> pa.Table:
    return pa.table({"id": range(ROWS), "word": [f"w{i}" * (i % 5) for i in range(ROWS)]})


def arrow_files(directory: Path) -> Any:
    for number, start in enumerate(range(0, ROWS, 3_000)):
        feather.write_feather(table().slice(start, 3_000), directory / f"{number}.arrow")
    return directory


def arrow_table(directory: Path) -> Any:
    return table()


def one_array_record(directory: Path) -> Any:
    write_array_record(table(), directory / "rows.array_record", group_size=50)
    return directory / "rows.array_record"


SOURCES: dict[str, tuple[type[TabularDataset], Callable[[Path], Any]]] = {
    "arrow files": (ArrowDataset, arrow_files),
    "table": (ArrowDataset, arrow_table),
    "array_record": (ArrayRecordDataset, one_array_record),
}


@pytest.fixture(params=list(SOURCES))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """Return ``create_dataloader`` of a dataset, with the location of its data."""
    dataset, write = SOURCES[request.param]
    source = write(tmp_path)
    return lambda **options: dataset.create_dataloader(source, **{"batch_size": 64, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 0, "shuffle": True, "mix": 3, "split_rows": 100},
        {"num_workers": 2, "lanes": 4, "shuffle": True},
    ],
    ids=["plain", "mixed", "workers"],
)
def test_every_row_once_and_resumed_in_the_middle(
    make: Callable[..., Any], options: dict[str, Any]
) -> None:
    loader, _ = make(**options)
    whole = list(map(ids_of, loader))
    row_ids = [i for batch in whole for i in batch]
    assert sorted(row_ids) == list(range(ROWS))
    if "shuffle" not in options:
        assert row_ids == list(range(ROWS))
    loader.set_epoch(0)
    running = iter(loader)
    for _ in range(20):
        next(running)
    state = loader.state_dict()
    again, _ = make(**options)
    again.load_state_dict(state)
    assert list(map(ids_of, again)) == whole[20:]


def test_one_large_shard_is_shared_by_ranks(make: Callable[..., Any]) -> None:
    ids = []
    for rank in range(3):
        loader, dataset = make(rank=rank, world_size=3, even=False, num_workers=0)
        mine = [i for batch in loader for i in ids_of(batch)]
        assert abs(len(mine) - ROWS / 3) < 3 * 64
        ids += mine
    assert sorted(ids) == list(range(ROWS))
    assert len(dataset.files) <= 2


def test_filters_and_columns(make: Callable[..., Any]) -> None:
    loader, dataset = make(filters=[("id", ">=", 4_900)], columns=["word"], num_workers=0)
    words = [word for batch in loader for word in batch["word"]]
    assert words == [f"w{i}" * (i % 5) for i in range(4_900, ROWS)]
    with pytest.raises(OptionError, match="filters are for streams"):
        dataset.rows  # noqa: B018


def test_the_same_rows_by_index(make: Callable[..., Any]) -> None:
    _, dataset = make()
    rows = dataset.rows
    assert len(rows) == ROWS
    assert rows[-1] == {"id": 4_999, "word": "w4999" * 4}
    assert rows[[9, 9, 4_000]]["id"].tolist() == [9, 9, 4_000]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rows.array_record", ArrayRecordDataset),
        ("rows.array_record-00000-of-00001", ArrayRecordDataset),
        ("", ArrayRecordDataset),
    ],
)
def test_array_records_are_known_by_their_names(tmp_path: Path, name: str, kind: type) -> None:
    write_array_record(table().slice(0, 10), tmp_path / (name or "a.arrayrecord"))
    dataset = headrace.open(tmp_path / name)
    assert isinstance(dataset, kind)
    assert dataset.rows[3]["id"] == 3


def test_tabular_files_are_known_by_their_extensions(tmp_path: Path) -> None:
    arrow_files(tmp_path)
    for dataset in (
        headrace.open(tmp_path),
        headrace.open([tmp_path / "0.arrow", tmp_path / "1.arrow"], batch_size=7),
    ):
        assert isinstance(dataset, StructuredDataset)
        assert len(dataset.rows) == ROWS
        assert dataset.rows[3_001]["word"] == "w3001"


def test_text_has_no_rows_by_index(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n2\n")
    with pytest.raises(OptionError, match="csv has no rows by index"):
        headrace.open(tmp_path / "a.csv").rows  # noqa: B018


def shards(directory: Path, **columns: pa.DataType) -> list[Path]:
    paths = []
    for number in range(3):
        table = pa.table({"x": pa.array(range(10 * number, 10 * number + 10), pa.int64())})
        paths.append(directory / f"{number}.arrow")
        feather.write_feather(table, paths[-1], compression="uncompressed")
    return paths


@pytest.mark.parametrize("options", [{}, {"shuffle": True}])
def test_a_batch_that_is_written_to_leaves_the_table_alone(options: dict[str, Any]) -> None:
    table = pa.table({"x": pa.array(range(1_000))})
    loader, dataset = ArrowDataset.create_dataloader(
        table, batch_size=100, num_workers=0, **options
    )
    for batch in loader:
        batch["x"].fill_(-7)
    assert table["x"].to_pylist() == list(range(1_000))
    assert dataset.rows[5]["x"] == 5


def test_a_generator_of_paths_keeps_its_first(tmp_path: Path) -> None:
    assert headrace.open(path for path in shards(tmp_path)).num_rows == 30  # type: ignore[arg-type]


@pytest.mark.parametrize("location", [None, 5, [5], [None, "a.parquet"]])
def test_what_is_no_path_is_refused(location: Any) -> None:
    with pytest.raises(OptionError, match=r"path must be a str, a Path or a list of them, not"):
        headrace.open(location)


def test_lance_tables_are_not_opened_in_lists() -> None:
    with pytest.raises(OptionError, match="by itself"):
        headrace.open(["a.lance", "b.lance"])


def test_rows_of_arrow_files_have_the_types_of_the_data_set(tmp_path: Path) -> None:
    shards(tmp_path)
    rows = headrace.open(tmp_path, schema=pa.schema([("x", pa.float32())])).rows
    assert rows.schema.types == [pa.float32()]
    expected = headrace.open(tmp_path).rows["x"]
    assert rows["x"].dtype == torch.float32
    assert rows["x"].tolist() == rows.batch(range(30))["x"].tolist() == expected.tolist()
    other = pa.table({"x": pa.array([1], pa.int32())})
    feather.write_feather(other, tmp_path / "3.arrow", compression="uncompressed")
    mixed = headrace.open(tmp_path).rows
    assert (mixed[30], mixed.schema.types) == ({"x": torch.tensor(1)}, [pa.int64()])


def test_transforms_of_batches_are_not_for_rows(tmp_path: Path) -> None:
    shards(tmp_path)
    with pytest.raises(OptionError, match="batches of streams"):
        headrace.open(tmp_path, transform=dict).rows  # noqa: B018


def test_shards_that_are_cut_off_are_skipped_and_named(tmp_path: Path) -> None:
    paths = shards(tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:100])
    with pytest.raises(headrace.ReadError, match=r"1\.arrow"):
        ArrowDataset(paths)
    with pytest.warns(SkippedDataWarning, match=r"1\.arrow"):
        loader, _ = ArrowDataset.create_dataloader(paths, on_error="skip", num_workers=0)
    assert [i for batch in loader for i in batch["x"].tolist()] == [*range(10), *range(20, 30)]
    assert len(loader.stats()["skipped_chunks"]) == 1
    paths[0].write_bytes(b"ARROW1")
    paths[2].write_bytes(b"")
    with pytest.raises(headrace.ReadError, match="no shard can be read"):
        ArrowDataset(paths, on_error="skip")
