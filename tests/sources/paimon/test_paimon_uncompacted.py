"""Tables that show rows only after an engine has compacted them: that is told."""

from __future__ import annotations

import logging

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from paimon_tables import Warehouse, write

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("n", pa.int64())])
ROWS = pa.table({"id": range(10), "n": range(10)}, schema=SCHEMA)


@pytest.mark.parametrize(
    "chosen",
    [{}, {"filters": ds.field("n") >= 0}, {"filters": ds.field("id") == 3}],
)
@pytest.mark.parametrize(
    "options", [{"bucket": "1", "deletion-vectors.enabled": "true"}, {"bucket": "-2"}]
)
def test_rows_that_wait_to_be_compacted_are_told_of(
    warehouse: Warehouse,
    options: dict[str, str],
    chosen: dict[str, ds.Expression],
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {"postpone.batch-write-fixed-bucket": "false", **options}
    table = warehouse.make("waiting", SCHEMA, primary_keys=["id"], **options)
    write(table, ROWS)
    with caplog.at_level(logging.WARNING, "headrace"):
        assert warehouse.read("waiting", **chosen) == []
    assert "1 of 1 data files are not read" in caplog.text


def test_nothing_is_told_of_rows_in_partitions_that_are_not_wanted(
    warehouse: Warehouse, caplog: pytest.LogCaptureFixture
) -> None:
    schema = pa.schema([*SCHEMA, pa.field("p", pa.string(), nullable=False)])
    table = warehouse.make(
        "parted",
        schema,
        primary_keys=["id", "p"],
        partition_keys=["p"],
        bucket="1",
        **{"deletion-vectors.enabled": "true"},
    )
    for name, level in (("done", 5), ("waiting", None)):
        column = pa.array([name] * 10)
        write(table, ROWS.append_column(schema.field("p"), column), level=level)
    with caplog.at_level(logging.WARNING, "headrace"):
        assert len(warehouse.read("parted", partition_filter={"p": "done"})) == 10
    assert "not read" not in caplog.text
    with caplog.at_level(logging.WARNING, "headrace"):
        assert warehouse.read("parted", partition_filter={"p": "waiting"}) == []
    assert "1 of 2 data files are not read" in caplog.text
