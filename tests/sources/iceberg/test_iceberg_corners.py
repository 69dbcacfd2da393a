"""What a table, its catalog and its user may do between two steps of a dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from numbered_tables import all_ids, ids_in, loader_of, make_table, numbers
from writers.catalogs import WritingCatalog
from writers.data_files import append_parquet_without_ids, append_rows

from headrace import IcebergDataset


def begun_and_moved_on(catalog: WritingCatalog) -> tuple[dict[str, Any], list[int]]:
    """A state of an epoch that was begun before the table was written anew, and what it saw."""
    table = make_table(catalog)
    loader, _ = loader_of("db.t", catalog)
    batches = iter(loader)
    seen = ids_in([next(batches) for _ in range(5)])
    state = loader.state_dict()
    table.overwrite(numbers(1000, 30))
    append_rows(table, numbers(2000, 100))
    return state, seen


def test_an_epoch_of_a_state_goes_on_as_it_began_whatever_is_refreshed(
    catalog: WritingCatalog,
) -> None:
    state, seen = begun_and_moved_on(catalog)
    loader, dataset = loader_of("db.t", catalog)
    newest = dataset.snapshot_id
    loader.load_state_dict(state)
    dataset.refresh()
    assert loader.state_dict()["plan"] == state["plan"]
    assert sorted(seen + ids_in(loader)) == list(range(120))
    assert dataset.refresh() == newest
    assert sorted(ids_in(loader)) == [*range(1000, 1030), *range(2000, 2100)]


def test_so_does_one_that_is_iterated_by_hand(catalog: WritingCatalog) -> None:
    state, seen = begun_and_moved_on(catalog)
    dataset = IcebergDataset("db.t", catalog, batch_size=10, output_format="numpy")
    dataset.load_state_dict(state)
    dataset.refresh()
    assert dataset.state_dict()["plan"] == state["plan"]
    assert sorted(seen + ids_in(dataset)) == list(range(120))


def test_statistics_of_a_field_that_had_another_name(catalog: WritingCatalog) -> None:
    pair = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    schema = pa.schema([("id", pa.int64()), ("n", pair)])
    limit = {"write.parquet.row-group-limit": "100"}
    table = catalog.create_table("db.swapped", schema, properties=limit)
    rows = [{"id": i, "n": {"a": i, "b": 10_000 - i}} for i in range(400)]
    append_rows(table, pa.Table.from_pylist(rows, schema=schema))
    for old, new in (("n.a", "x"), ("n.b", "a"), ("n.x", "b")):
        with table.update_schema() as change:
            change.rename_column(old, new)
    with table.update_schema() as change:
        change.move_first("n.a")
    found = all_ids("db.swapped", catalog, columns=["id"], filters=pc.field("n", "a") >= 9_900)
    assert found == list(range(101))
    assert all_ids("db.swapped", catalog, columns=["id"], filters=pc.field("n", "a") < 1_000) == []


def test_a_name_mapping_that_is_mended(catalog: WritingCatalog) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.int64())])
    table = catalog.create_table("db.mapped", schema)
    append_parquet_without_ids(table, pa.table({"id": [1, 2], "x": [3, 4]}))
    for names, expected in ((["id"], [None, None]), (["id", "x"], [3, 4])):
        mapping = [{"field-id": 1 + at, "names": [name]} for at, name in enumerate(names)]
        with table.transaction() as change:
            change.set_properties({"schema.name-mapping.default": json.dumps(mapping)})
        dataset = IcebergDataset("db.mapped", catalog, output_format="dict")
        assert [x for batch in dataset for x in batch["x"]] == expected


@pytest.mark.parametrize("property_", ["s3.signer", "s3.role-arn"])
def test_keys_of_your_own_where_the_catalogs_way_is_not_supported(
    catalog: WritingCatalog, tmp_path: Path, property_: str
) -> None:
    catalog.create_table(
        "db.signed",
        pa.schema([("id", pa.int64())]),
        location="s3://bucket/t",
        properties={"write.metadata.path": f"file://{tmp_path}"},
    )
    config = {**catalog.properties_for_users, property_: "something"}
    keys = {"key": "a", "secret": "b", "region": "us-east-1"}
    dataset = IcebergDataset("tests.db.signed", config, storage_options=keys)
    assert dataset.num_rows == 0
    with pytest.raises(ValueError, match="give your own keys as storage_options"):
        IcebergDataset("tests.db.signed", config)
