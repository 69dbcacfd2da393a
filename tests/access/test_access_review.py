"""Corner cases of backends, of ``open`` and of ``dataset.rows`` that a review found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest
import torch

import headrace
from headrace import ArrowDataset, OptionError, SkippedDataWarning
from headrace.access import ArrowBackend, RowDataset


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


@pytest.mark.parametrize("wrong", [2**63, 2**70, -(2**70)])
def test_indices_beyond_all_numbers_are_index_errors(wrong: int) -> None:
    backend = ArrowBackend(table=pa.table({"x": range(10)}))
    for indices in ([wrong], [-1, wrong]):
        with pytest.raises(IndexError, match=str(wrong)):
            backend.take(indices)
    with pytest.raises(IndexError):
        backend.get_row(wrong)


def test_slices_of_small_integers_do_not_overflow() -> None:
    backend = ArrowBackend(table=pa.table({"x": range(250)}))
    with pytest.raises(IndexError):
        backend.slice(np.uint8(200), np.uint8(100))  # type: ignore[arg-type]


def test_integers_that_are_objects_are_integers() -> None:
    backend = ArrowBackend(table=pa.table({"x": range(10)}))
    some = np.array([3, np.int64(-1), 3], dtype=object)
    assert backend.take(some)["x"].to_pylist() == [3, 9, 3]
    assert RowDataset(backend)[some]["x"].tolist() == [3, 9, 3]
    with pytest.raises(IndexError, match="there is no row 10"):
        backend.take(np.array([3, 10], dtype=object))
    with pytest.raises(TypeError):
        backend.take(np.array([3, None], dtype=object))


def test_columns_of_a_generator_are_read() -> None:
    backend = ArrowBackend(table=pa.table({"x": range(10), "y": range(10)}))
    assert backend.take([1], columns=(name for name in "y")).column_names == ["y"]  # type: ignore[arg-type]
    rows = RowDataset(backend).select_columns(name for name in "y")  # type: ignore[arg-type]
    assert rows.column_names == ["y"]
