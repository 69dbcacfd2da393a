"""Shuffled copies of tables, which are more than their files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.utils.concurrent import ExecutorFactory
from shuffled_rows import copied, ids_of

from headrace import IcebergDataset, StateMismatchError, shuffle_into


@pytest.fixture(scope="module", autouse=True)
def no_threads_of_pyiceberg_are_left(nothing_is_left_behind: None) -> Iterator[None]:
    """End the thread pool that pyiceberg keeps until a process ends."""
    yield
    if ExecutorFactory._instance is not None:
        ExecutorFactory._instance.shutdown()
        ExecutorFactory._instance = None


@pytest.fixture
def config(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "warehouse").mkdir()
    place = f"file://{tmp_path}/warehouse"
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": place}


@pytest.fixture
def catalog(config: dict[str, str]) -> Iterator[Catalog]:
    with load_catalog("tests", **config) as opened:
        opened.create_namespace("db")
        yield opened


class Stop(Exception):
    """Ends a shuffle as an interrupt does."""


def test_an_iceberg_table_at_its_snapshot(
    catalog: Catalog, config: dict[str, str], tmp_path: Path
) -> None:
    rows = pa.table({"id": range(2_000), "name": [f"n{i}" for i in range(2_000)]})
    table = catalog.create_table("db.t", rows.schema)
    table.append(rows.slice(0, 1_000))
    with table.update_schema() as change:
        change.rename_column("name", "called")
    table.append(rows.slice(1_000).rename_columns(["id", "called"]))
    table.delete("id >= 100 and id < 150")

    def dataset() -> IcebergDataset:
        return IcebergDataset("tests.db.t", catalog_config=config)

    shuffle_into(dataset(), tmp_path / "out")
    left = [i for i in range(2_000) if not 100 <= i < 150]
    assert sorted(ids_of(tmp_path / "out")) == left
    columns = copied(tmp_path / "out").to_pydict()
    assert columns["called"] == [f"n{i}" for i in columns["id"]]

    def stop(stage: str, share: float) -> None:
        if stage == "writing":
            raise Stop

    with pytest.raises(Stop):
        shuffle_into(dataset(), tmp_path / "again", progress=stop)
    table.delete("id = 7")
    with pytest.raises(StateMismatchError, match="these differ: source files"):
        shuffle_into(dataset(), tmp_path / "again")
