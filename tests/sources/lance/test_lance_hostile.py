"""Lance tables whose metadata asks for code to be run: nothing of it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hostile_tables import OUTPUT_FORMATS, as_python, harmless_table, hostile_table
from lance_elsewhere import Elsewhere

from headrace import LanceDataset


def read_all_ways(uri: str, output_format: str) -> list[Any]:
    """What a stream and rows by index give; in a process that may use Lance."""
    dataset = LanceDataset(uri, batch_size=2, output_format=output_format)
    rows = dataset.rows
    return [
        [as_python(batch) for batch in dataset],
        [as_python(some[[2, 0]]) for some in (rows, rows.flatten())],
        as_python(rows[1]),
        dataset.backend.get_row(1),
    ]


@pytest.mark.parametrize("output_format", OUTPUT_FORMATS)
def test_metadata_of_a_table_decides_nothing(
    elsewhere: Elsewhere, tmp_path: Path, output_format: str
) -> None:
    marker = tmp_path / "it ran"
    for name, make in {"harmless": harmless_table, "hostile": hostile_table}.items():
        elsewhere.write(tmp_path / f"{name}.lance", make(marker))
    expected, found = (
        elsewhere.call(read_all_ways, str(tmp_path / f"{name}.lance"), output_format)
        for name in ("harmless", "hostile")
    )
    assert found == expected
    assert not marker.exists()
