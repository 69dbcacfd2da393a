"""Tables whose files ask for code to be run: nothing of it runs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hostile_tables import OUTPUT_FORMATS, as_python, harmless_table, hostile_table
from paimon_tables import Warehouse, write


@pytest.mark.filterwarnings("ignore:pickle-based deserialization")  # of types: pyarrow refuses it
@pytest.mark.filterwarnings("ignore:pyarrow.PyExtensionType is deprecated")
@pytest.mark.parametrize("output_format", OUTPUT_FORMATS)
def test_metadata_of_data_files_decides_nothing(
    warehouse: Warehouse, tmp_path: Path, output_format: str
) -> None:
    marker = tmp_path / "it ran"
    found = {}
    for name, make in {"harmless": harmless_table, "hostile": hostile_table}.items():
        table = warehouse.make(name, harmless_table(marker, pa.binary()).schema)
        write(table, make(marker, pa.binary()))
        loader, dataset = warehouse.load(name, output_format=output_format)
        stored = pq.read_schema(dataset.files[0].path).field("pickle").metadata or {}
        assert (b"headrace.decoded" in stored) == (name == "hostile")
        found[name] = [as_python(batch) for batch in loader]
    assert found["hostile"] == found["harmless"]
    assert not marker.exists()
