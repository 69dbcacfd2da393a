"""Rows by index of backends of every kind: fields of structs as columns."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from headrace import ArrowDataset, LanceDataset, StructuredDataset
from headrace.access import ArrowBackend, LanceBackend, ParquetBackend, RowDataset
from headrace.errors import SchemaError

TABLE = pa.table({"id": range(10), "s": [{"a": n, "b": {"c": str(n), "d": n}} for n in range(10)]})
COLUMNS = ["s.a", "id", "s.b.c"]


def row(number: int) -> dict[str, Any]:
    return {"s": {"a": number, "b": {"c": str(number)}}, "id": number}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("structs")
    pq.write_table(TABLE, folder / "t.parquet", row_group_size=4)
    orc.write_table(TABLE, folder / "t.orc")
    with ipc.new_file(folder / "t.arrow", TABLE.schema) as file:
        file.write_table(TABLE, max_chunksize=3)
    lance.write_dataset(TABLE, folder / "t.lance")
    return folder


@pytest.mark.parametrize("kind", ["arrow", "table", "parquet", "lance"])
def test_fields_of_structs(folder: Path, kind: str) -> None:
    backend: Any = {
        "arrow": lambda: ArrowBackend(folder / "t.arrow"),
        "table": lambda: ArrowBackend(table=TABLE),
        "parquet": lambda: ParquetBackend(folder / "t.parquet"),
        "lance": lambda: LanceBackend(str(folder / "t.lance")),
    }[kind]()
    assert backend.take([3, 0], columns=COLUMNS).to_pylist() == [row(3), row(0)]
    assert backend.slice(8, 2, columns=COLUMNS).to_pylist() == [row(8), row(9)]
    assert backend.get_row(7, columns=COLUMNS) == row(7)
    batches = backend.iter_batches(columns=COLUMNS)
    assert [one for batch in batches for one in batch.to_pylist()] == list(map(row, range(10)))
    rows = RowDataset(backend, columns=COLUMNS, output_format="dict")
    for dataset in (rows, pickle.loads(pickle.dumps(rows))):
        assert dataset[5] == row(5)
        assert dataset[[6, 1]]["s"] == [row(6)["s"], row(1)["s"]]
    with pytest.raises(SchemaError, match=r"no column 's\.x'"):
        backend.take([0], columns=["s.x"])


@pytest.mark.parametrize("kind", ["arrow", "table", "parquet", "orc", "lance"])
def test_fields_of_structs_of_datasets(folder: Path, kind: str) -> None:
    def open_with(**options: Any) -> Any:
        options = {"output_format": "dict", **options}
        if kind == "table":
            return ArrowDataset(TABLE, **options)
        make = LanceDataset if kind == "lance" else StructuredDataset
        return make(str(folder / f"t.{kind}"), **options)

    (batch,) = open_with(columns=COLUMNS)
    assert batch["s"] == [row(number)["s"] for number in range(10)]
    assert open_with(columns=COLUMNS).rows[4] == row(4)
    (found,) = open_with(columns=["s.a"], filters=[("s.b.d", "==", 3)])
    assert found == {"s": [{"a": 3}]}
