"""Tables whose files ask for code to be run: nothing of it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hostile_tables import OUTPUT_FORMATS, as_python, harmless_table, hostile_table
from writers.catalogs import WritingCatalog
from writers.data_files import append_parquet_without_ids

from headrace import IcebergDataset


def batches(catalog: WritingCatalog, name: str, output_format: str) -> list[Any]:
    dataset = IcebergDataset(
        f"tests.db.{name}",
        catalog.properties_for_users,
        batch_size=2,
        output_format=output_format,
        nulls={} if output_format in ("torch", "numpy") else None,
    )
    return [as_python(batch) for batch in dataset]


@pytest.mark.parametrize("output_format", OUTPUT_FORMATS)
def test_metadata_of_data_files_decides_nothing(
    catalog: WritingCatalog, tmp_path: Path, output_format: str
) -> None:
    marker = tmp_path / "it ran"
    for name, make in {"harmless": harmless_table, "hostile": hostile_table}.items():
        table = catalog.create_table(f"db.{name}", harmless_table(marker).schema)
        (path,) = append_parquet_without_ids(table, make(marker))
    assert pq.read_schema(path.removeprefix("file://")).field("pickle").metadata
    expected, found = (batches(catalog, name, output_format) for name in ("harmless", "hostile"))
    assert found == expected
    assert not marker.exists()
