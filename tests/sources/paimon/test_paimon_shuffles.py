"""Shuffled copies of Paimon tables, and into them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from paimon_tables import Warehouse, arrow_rows, delete, files, in_order, numbered, write
from pypaimon.schema.schema_change import SchemaChange

from headrace import OptionError, PaimonDataset, StructuredDataset, shuffle_into
from headrace.write import TargetOptions
from headrace.write._paimon import PaimonTarget


class Stop(Exception):
    """Ends a shuffle as an interrupt would."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    for place in range(3):
        pq.write_table(numbered(1000 * place, 1000), tmp_path / "source" / f"{place}.parquet")
    return tmp_path / "source"


def test_files_into_a_table(source: Path, warehouse: Warehouse) -> None:
    target = f"{warehouse.options['warehouse']}/db.db/shuffled"
    report = shuffle_into(
        source, target, target_format="paimon", file_rows=700, row_group_rows=100, seed=1
    )
    assert report.rows == 3000
    table = warehouse.table("shuffled")
    assert in_order(arrow_rows(table)) == numbered(0, 3000).to_pylist()
    assert len(files(table)) == 5
    _, dataset = warehouse.load("shuffled")
    footers = [pq.read_metadata(file.path) for file in dataset.files]
    assert sum(footer.num_row_groups for footer in footers) == 30
    rows = [row["id"] for row in warehouse.read("shuffled", chunk_size=100, shuffle=True)]
    assert sorted(rows) == list(range(3000))
    assert abs(float(np.corrcoef(rows, range(3000))[0, 1])) < 0.1


def test_a_table_that_is_there_is_only_overwritten_if_told(
    source: Path, warehouse: Warehouse
) -> None:
    target = f"{warehouse.options['warehouse']}/db.db/shuffled"
    shuffle_into(source, target, target_format="paimon", seed=1)
    with pytest.raises(OptionError, match="overwrite"):
        shuffle_into(source, target, target_format="paimon", seed=2)
    first = warehouse.read("shuffled")
    shuffle_into(source, target, target_format="paimon", seed=2, overwrite=True)
    second = warehouse.read("shuffled")
    assert first != second
    assert in_order(first) == in_order(second)
    assert warehouse.read("shuffled", snapshot_id=1) == first
    with pytest.raises(OptionError, match="other columns"):
        shuffle_into(source, target, target_format="paimon", columns=["id"], overwrite=True)


def test_an_interrupted_shuffle_goes_on(source: Path, warehouse: Warehouse) -> None:
    target = f"{warehouse.options['warehouse']}/db.db/shuffled"

    def stop(stage: str, share: float) -> None:
        if stage == "writing" and share > 0.4:
            raise Stop

    options = {"target_format": "paimon", "file_rows": 500, "seed": 1}
    with pytest.raises(Stop):
        shuffle_into(source, target, progress=stop, **options)
    report = shuffle_into(source, target, **options)
    assert report.resumed
    assert in_order(arrow_rows(warehouse.table("shuffled"))) == numbered(0, 3000).to_pylist()
    assert warehouse.table("shuffled").snapshot_manager().get_latest_snapshot().id == 1


def test_files_into_a_table_in_a_bucket(source: Path, s3_warehouse: Warehouse) -> None:
    options = dict(s3_warehouse.options)
    target = f"{options.pop('warehouse')}/db.db/shuffled"
    shuffle_into(source, target, target_format="paimon", target_options=options, file_rows=700)
    assert in_order(arrow_rows(s3_warehouse.table("shuffled"))) == numbered(0, 3000).to_pylist()
    assert in_order(s3_warehouse.read("shuffled")) == numbered(0, 3000).to_pylist()


def test_a_commit_that_is_done_again_changes_nothing(warehouse: Warehouse, tmp_path: Path) -> None:
    place = f"{warehouse.options['warehouse']}/db.db/twice"
    target = PaimonTarget(TargetOptions(location=place, work_dir=tmp_path))
    schema = numbered(0, 0).schema
    receipt = target.write(0, 1, schema, iter([numbered(0, 10), numbered(10, 10)]))
    receipt = json.loads(json.dumps(receipt))
    assert target.holds(receipt, "run")
    for run in ("one", "one"):
        target.commit(schema, [receipt], {"run": run})
    table = warehouse.table("twice")
    assert table.snapshot_manager().get_latest_snapshot().id == 1
    assert in_order(arrow_rows(table)) == numbered(0, 20).to_pylist()
    Path(receipt["files"][0]).unlink()
    assert not target.holds(receipt, "run")


@pytest.mark.parametrize("chunk_size", [None, 7, 130])
def test_many_row_groups_with_deleted_rows(
    source: Path, warehouse: Warehouse, chunk_size: int | None
) -> None:
    target = f"{warehouse.options['warehouse']}/db.db/shuffled"
    shuffle_into(source, target, target_format="paimon", row_group_rows=100, file_rows=1500)
    enabled = SchemaChange.set_option("deletion-vectors.enabled", "true")
    table = warehouse.alter("shuffled", enabled)  # or pypaimon would not look at them
    one, other = files(table)
    delete(table, {one: [*range(50, 420), 999], other: range(1500 - 100, 1500)})
    _, dataset = loaded = warehouse.load("shuffled", chunk_size=chunk_size, shuffle=True, lanes=3)
    rows = [row for batch in loaded[0] for row in batch.to_pylist()]
    assert in_order(rows) == in_order(arrow_rows(table))
    assert dataset.num_rows == len(rows) == 3000 - 471


@pytest.mark.parametrize("target", ["/tmp/table", "/tmp/db/table", "/.db/x"])
def test_places_of_no_table_are_refused(source: Path, target: str) -> None:
    with pytest.raises(OptionError, match="not the location of a Paimon table"):
        shuffle_into(source, target, target_format="paimon")


@pytest.mark.parametrize("type_", [pa.uint64(), pa.large_binary(), pa.decimal256(40, 2)])
def test_columns_that_paimon_has_not_are_refused_before_any_work(
    tmp_path: Path, type_: pa.DataType
) -> None:
    (tmp_path / "source").mkdir()
    pq.write_table(pa.table({"u": pa.array([], type_)}), tmp_path / "source" / "a.parquet")
    said: list[str] = []
    with pytest.raises(OptionError, match="cannot hold these columns"):
        shuffle_into(
            tmp_path / "source",
            f"{tmp_path}/w/db.db/t",
            target_format="paimon",
            progress=lambda stage, share: said.append(stage),
        )
    assert not said
    assert not (tmp_path / "w" / "db.db").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"bucket": "3", "bucket-key": "id"}, "bucket=3"),
        ({"file.format": "orc"}, "file.format=orc"),
        ({"columns": "others"}, "other columns"),
    ],
)
def test_tables_that_files_of_ours_have_no_place_in_are_refused_before_any_work(
    source: Path, warehouse: Warehouse, options: dict[str, str], named: str
) -> None:
    rows = numbered(0, 10)
    if options.pop("columns", None):
        rows = rows.select(["id"])
    table = warehouse.make("there", rows.schema, **options)
    write(table, rows)
    said: list[str] = []
    with pytest.raises(OptionError, match=named):
        shuffle_into(
            source,
            table.table_path,
            target_format="paimon",
            overwrite=True,
            progress=lambda stage, share: said.append(stage),
        )
    assert not said
    assert in_order(warehouse.read("there")) == rows.to_pylist()
    target = PaimonTarget(TargetOptions(location=table.table_path, work_dir=source))
    with pytest.raises(OptionError, match=named):  # work that goes on is checked then
        target.write(0, 1, numbered(0, 0).schema, iter([numbered(0, 10)]))


@pytest.mark.parametrize("mode", ["full", "truncate(16)"])
def test_statistics_of_a_table_that_is_there_hide_no_rows(
    source: Path, warehouse: Warehouse, mode: str
) -> None:
    table = warehouse.make("there", numbered(0, 0).schema, **{"metadata.stats-mode": mode})
    write(table, numbered(0, 10))
    shuffle_into(source, table.table_path, target_format="paimon", overwrite=True)
    for number in (0, 1234, 2999):
        keep = ds.field("id") == number
        assert warehouse.read("there", filters=keep) == numbered(number, 1).to_pylist()
    builder = warehouse.table("there").new_read_builder()
    builder.with_filter(builder.new_predicate_builder().greater_or_equal("id", 2000))
    found = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    assert found.num_rows == 1000


def test_a_table_with_deleted_rows_into_files(warehouse: Warehouse, tmp_path: Path) -> None:
    table = warehouse.make("holed", numbered(0, 0).schema, **{"deletion-vectors.enabled": "true"})
    write(table, numbered(0, 500))
    delete(table, {files(table)[0]: range(100)})
    dataset = PaimonDataset("db.holed", warehouse.options)
    shuffle_into(dataset, tmp_path / "out")
    copy = StructuredDataset(tmp_path / "out", output_format="arrow")
    rows = [row for batch in copy for row in batch.to_pylist()]
    assert in_order(rows) == in_order(arrow_rows(table))
    assert rows != in_order(rows)


def test_rows_that_are_merged_into_files(warehouse: Warehouse, tmp_path: Path) -> None:
    fields = [one.with_nullable(one.name != "id") for one in numbered(0, 0).schema]
    table = warehouse.make("merged", pa.schema(fields), primary_keys=["id"], bucket="1")
    for start in (0, 50):
        write(table, numbered(start, 100).cast(pa.schema(fields)))
    assert shuffle_into(warehouse.load("merged")[1], tmp_path / "out").rows == 150
    assert in_order(pq.read_table(tmp_path / "out").to_pylist()) == in_order(arrow_rows(table))


def test_blobs_into_files(warehouse: Warehouse, tmp_path: Path) -> None:
    tracked = {"row-tracking.enabled": "true", "data-evolution.enabled": "true"}
    blobs = pa.array([b"x" * i for i in range(10)], pa.large_binary())
    rows = pa.table({"id": pa.array(range(10), pa.int64()), "blob": blobs})
    write(warehouse.make("blobs", rows.schema, **tracked), rows)
    shuffle_into(warehouse.load("blobs")[1], tmp_path / "out")
    assert in_order(pq.read_table(tmp_path / "out").to_pylist()) == rows.to_pylist()
