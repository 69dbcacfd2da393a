"""Files whose metadata or content asks a reader to run code: no code runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hostile_tables import (
    OUTPUT_FORMATS,
    array_of_objects,
    as_python,
    bomb,
    harmless_table,
    hostile_table,
)
from pyarrow import ipc
from sample_tars import write_tar

from headrace import ArrayRecordDataset, ArrowDataset, StructuredDataset, TarDataset
from headrace.access import ArrowBackend, RowDataset
from headrace.errors import ReadError
from headrace.write import write_array_record

Writer = Callable[[pa.Table, Path], None]


def write_file(table: pa.Table, path: Path) -> None:
    with ipc.new_file(path, table.schema) as file:
        file.write_table(table)


def write_stream(table: pa.Table, path: Path) -> None:
    with ipc.new_stream(path, table.schema) as file:
        file.write_table(table)


def write_records(table: pa.Table, path: Path) -> None:
    write_array_record(table, path)


WRITERS: dict[str, tuple[Writer, str]] = {
    "parquet": (pq.write_table, "a.parquet"),
    "arrow file": (write_file, "a.arrow"),
    "arrow stream": (write_stream, "a.arrow"),
    "orc": (orc.write_table, "a.orc"),
    "array_record": (write_records, "a.array_record"),
}
"""by kind: a function that writes a table to a file, and the name of the file"""


def dataset_of(kind: str, path: Path, **options: Any) -> Any:
    if kind == "array_record":
        return ArrayRecordDataset(path, batch_size=2, **options)
    return StructuredDataset(path, format=kind.split()[0], batch_size=2, **options)


def read_all_ways(kind: str, path: Path, output_format: str) -> dict[str, Any]:
    """Read a file as a stream, as rows by index and as rows in memory, and return the results."""
    dataset = dataset_of(kind, path, output_format=output_format)
    found: dict[str, Any] = {"stream": [as_python(batch) for batch in dataset]}
    rows = dataset.rows
    for name, some in {"rows": rows, "in memory": rows.flatten()}.items():
        found[name] = [as_python(some[0]), as_python(some[[2, 1]])]
    renamed = rows.rename_column("pickle", "other").add_column("new", [1, 2, 3])
    found["renamed"] = as_python(renamed[[0, 1]])
    if kind.startswith("arrow"):
        backend = ArrowBackend(path)
        found["backend"] = [
            backend.get_row(1),
            as_python(RowDataset(backend, output_format=output_format)[0]),
            [as_python(batch) for batch in ArrowDataset(path, output_format=output_format)],
        ]
    return found


@pytest.mark.parametrize("output_format", OUTPUT_FORMATS)
@pytest.mark.parametrize("kind", WRITERS)
def test_metadata_of_a_file_decides_nothing(tmp_path: Path, kind: str, output_format: str) -> None:
    write, name = WRITERS[kind]
    marker = tmp_path / "it ran"
    paths = [tmp_path / "harmless" / name, tmp_path / "hostile" / name]
    for path, table in zip(paths, (harmless_table(marker), hostile_table(marker)), strict=True):
        path.parent.mkdir()
        write(table, path)
    expected, found = (read_all_ways(kind, path, output_format) for path in paths)
    assert found == expected
    assert not marker.exists()


def test_worker_processes_run_nothing_either(tmp_path: Path) -> None:
    marker = tmp_path / "it ran"
    table = hostile_table(marker)
    pq.write_table(table, tmp_path / "a.parquet")
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path / "a.parquet", columns=["pickle"], batch_size=2, num_workers=1
    )
    found = [value for batch in loader for value in batch["pickle"]]
    assert found == table["pickle"].to_pylist()
    assert not marker.exists()


@pytest.mark.parametrize("output_format", OUTPUT_FORMATS)
@pytest.mark.parametrize("decode", [None, True])
def test_pickles_in_tars_stay_bytes(
    tmp_path: Path, decode: bool | None, output_format: str
) -> None:
    marker = tmp_path / "it ran"
    names = ("pkl", "pickle", "pth", "pt", "pyd", "bin")
    write_tar(tmp_path / "a.tar", [(f"1.{name}", bomb(marker)) for name in names])
    dataset = TarDataset(tmp_path / "a.tar", decode=decode, output_format=output_format)
    (batch,) = map(as_python, dataset)
    for found in (batch, as_python(dataset.rows[[0]]), as_python(dataset.rows.flatten()[[0]])):
        assert [found[name] for name in names] == [[bomb(marker)]] * len(names)
    assert not marker.exists()


def test_arrays_of_objects_in_tars_are_refused(tmp_path: Path) -> None:
    marker = tmp_path / "it ran"
    write_tar(tmp_path / "a.tar", [("1.npy", array_of_objects(marker))])
    dataset = TarDataset(tmp_path / "a.tar", decode=True)
    with pytest.raises(ReadError, match=r"a\.tar.*1\.npy.*Python objects"):
        list(dataset)
    with pytest.raises(ReadError, match=r"a\.tar.*1\.npy.*Python objects"):
        dataset.rows[0]
    assert not marker.exists()
