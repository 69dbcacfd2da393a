"""``columns=`` and ``schema=`` decide before files are compared, and name fields of structs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from headrace import OptionError, SchemaError, StructuredDataset

WRITERS = {
    "parquet": pq.write_table,
    "arrow": lambda table, path: pa.feather.write_feather(table, path, compression="uncompressed"),
    "orc": pa.orc.write_table,
}


def rows_of(folder: Path, **options: Any) -> list[dict[str, Any]]:
    dataset = StructuredDataset(folder, output_format="arrow", batch_size=7, **options)
    return [row for batch in dataset for row in batch.to_pylist()]


def written(folder: Path, format_: str, *tables: pa.Table) -> Path:
    for number, table in enumerate(tables):
        # In memory of its own: pyarrow writes slices of structs with nulls wrongly to ORC.
        copied = pa.Table.from_pylist(table.to_pylist(), schema=table.schema)
        WRITERS[format_](copied, folder / f"{number}.{format_}")
    return folder


@pytest.mark.parametrize("format_", WRITERS)
def test_a_column_that_is_not_asked_for_may_have_any_type(tmp_path: Path, format_: str) -> None:
    folder = written(
        tmp_path, format_, pa.table({"id": [1], "x": [1.5]}), pa.table({"id": [2], "x": ["one"]})
    )
    with pytest.raises(SchemaError, match=r"column 'x' is double in .* and string in"):
        rows_of(folder)
    assert rows_of(folder, columns=["id"]) == [{"id": 1}, {"id": 2}]
    assert rows_of(folder, columns=["id"], filters=[("id", ">", 1)]) == [{"id": 2}]
    with pytest.raises(SchemaError, match="column 'x'"):
        rows_of(folder, columns=["id"], filters=[("x", "==", "one")])


@pytest.mark.parametrize("format_", WRITERS)
def test_a_schema_names_a_common_type(tmp_path: Path, format_: str) -> None:
    day = pa.array([19000], pa.date32())
    time = pa.array([86_400_000_000_000 * 19000 + 5_000], pa.timestamp("ns"))
    folder = written(
        tmp_path, format_, pa.table({"x": [1], "t": day}), pa.table({"x": ["one"], "t": time})
    )
    schema = pa.schema([("x", pa.string()), ("t", pa.timestamp("ns"))])
    dataset = StructuredDataset(folder, output_format="arrow", batch_size=9, schema=schema)
    (batch,) = dataset
    assert batch.schema.equals(schema)
    assert batch["x"].to_pylist() == ["1", "one"]
    assert batch["t"].cast(pa.int64()).to_pylist() == [
        86_400_000_000_000 * 19000,
        86_400_000_000_000 * 19000 + 5_000,
    ]
    assert rows_of(folder, schema=schema, filters=[("x", "==", "1")])[0]["x"] == "1"


def test_columns_that_stand_twice_matter_only_if_asked_for(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["a", "v", "v"])
    pq.write_table(twice, tmp_path / "0.parquet")
    assert rows_of(tmp_path, columns=["a"]) == [{"a": 1}]
    with pytest.raises(SchemaError, match="two columns named 'v'"):
        rows_of(tmp_path, columns=["v"])


NESTED = pa.table(
    {
        "id": range(20),
        "s": [
            None if i % 7 == 3 else {"a": i, "b": f"b{i}", "t": {"c": i / 2, "d": [i]}}
            for i in range(20)
        ],
    }
)


@pytest.mark.parametrize("format_", WRITERS)
def test_fields_of_structs_are_columns(tmp_path: Path, format_: str) -> None:
    folder = written(tmp_path, format_, NESTED.slice(0, 11), NESTED.slice(11))
    found = rows_of(folder, columns=["s.t.c", "id", "s.a"])
    assert found == [
        {
            "s": row["s"] and {"a": row["s"]["a"], "t": {"c": row["s"]["t"]["c"]}},
            "id": row["id"],
        }
        for row in NESTED.to_pylist()
    ]
    with pytest.raises(SchemaError, match=r"there is no column 's\.z'"):
        rows_of(folder, columns=["s.z"])
    with pytest.raises(OptionError, match="columns names 's' and a field within it"):
        rows_of(folder, columns=["s", "s.a"])


@pytest.mark.parametrize("format_", WRITERS)
@pytest.mark.parametrize(
    "filters",
    [
        [("s.a", ">=", 15)],
        [("s.t.c", ">", 7.1), ("id", "<", 99)],
        ds.field("s", "a") >= 15,
    ],
)
def test_filters_over_fields_of_structs(tmp_path: Path, format_: str, filters: Any) -> None:
    folder = written(tmp_path, format_, NESTED.slice(0, 11), NESTED.slice(11))
    expected = [row for row in NESTED.to_pylist() if row["s"] and row["s"]["a"] >= 15]
    assert rows_of(folder, filters=filters) == expected
    assert rows_of(folder, filters=filters, columns=["id", "s.b"]) == [
        {"id": row["id"], "s": {"b": row["s"]["b"]}} for row in expected
    ]
    assert rows_of(folder, filters=filters, columns=["id"]) == [
        {"id": row["id"]} for row in expected
    ]


def test_a_column_whose_name_has_a_dot_comes_first(tmp_path: Path) -> None:
    table = pa.table({"s.a": [1, 2], "s": [{"a": 5}, {"a": 6}]})
    folder = written(tmp_path, "parquet", table)
    assert rows_of(folder, columns=["s.a"]) == [{"s.a": 1}, {"s.a": 2}]
    assert rows_of(folder, filters=[("s.a", ">", 1)], columns=["s"]) == [{"s": {"a": 6}}]


def test_only_the_leaves_of_wanted_fields_are_read(tmp_path: Path) -> None:
    large = pa.table({"s": [{"a": i, "b": "x" * 20_000 + str(i)} for i in range(50)]})
    pq.write_table(large, tmp_path / "0.parquet", compression="none", use_dictionary=False)
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, columns=["s.a"], batch_size=50, num_workers=0
    )
    (batch,) = loader
    assert batch["s"]["a"].tolist() == list(range(50))
    assert loader.stats()["bytes"] < 10_000
