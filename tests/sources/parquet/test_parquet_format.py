"""Parquet files: row groups, their statistics, nested columns."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from headrace import StructuredDataset
from headrace.errors import OptionError, ReadError
from headrace.model import DataFileInfo, FileSplit, RowRange
from headrace.sources.parquet import _format as parquet_format
from headrace.sources.parquet._format import ParquetFormat
from headrace.storage import LocalStore, Store, store_for
from headrace.testing import FormatContract


class TestParquetContract(FormatContract):
    prunes = True

    def format(self) -> ParquetFormat:
        return ParquetFormat()

    def write(self, path: Path, table: pa.Table) -> None:
        parquet.write_table(table, path, row_group_size=self.rows_per_group)


def test_options_change_what_a_file_is_found_to_hold(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    far = pa.array([253402300799000], pa.timestamp("ms"))  # the year 9999: too far for nanoseconds
    parquet.write_table(pa.table({"t": far, "id": [1]}), path, use_deprecated_int96_timestamps=True)
    file, store = DataFileInfo(str(path)), LocalStore()
    option = ParquetFormat({"coerce_int96_timestamp_unit": "ms"})
    for keep in (None, pc.field("id") == 1):
        facts = option.inspect(store, file, keep)
        assert facts.schema.field("t").type == pa.timestamp("ms")
        assert facts.row_groups is not None
        assert len(facts.row_groups) == 1
        (table,) = option.read(store, FileSplit(file), facts.schema, 1 << 20)
        assert table["t"].combine_chunks().equals(far)
    with pytest.raises(OptionError, match="known are coerce_int96"):
        ParquetFormat({"coerce": "ms"})


def test_a_footer_beyond_the_limits_of_thrift_is_read_where_options_allow_it(
    tmp_path: Path,
) -> None:
    """A long string is taken for an attack unless one says how much may be."""
    path = tmp_path / "a.parquet"
    noted = pa.table({"id": [1, 2, 3]}).replace_schema_metadata({"note": "x" * 76_000})
    parquet.write_table(noted, path)
    file, store = DataFileInfo(str(path)), LocalStore()
    keep = pc.field("id") == 1
    with pytest.raises(ReadError, match="not readable as Parquet"):
        ParquetFormat({"thrift_string_size_limit": 70_000}).inspect(store, file, keep)
    facts = ParquetFormat({"thrift_string_size_limit": 200_000}).inspect(store, file, keep)
    assert facts.matching is not None
    assert len(facts.matching) == 1


def test_all_row_groups_of_a_file_share_one_look_at_its_footer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rows = tmp_path / "a.parquet", 4000
    table = pa.table({"id": range(rows), "text": [str(i) for i in range(rows)]})
    parquet.write_table(table, path, row_group_size=rows // 4)
    file, store = DataFileInfo(str(path)), LocalStore()
    looks: list[str] = []
    parsed: list[str] = []

    def counted(name: str, call: Any) -> Any:
        return lambda *given, **how: (looks.append(name), call(*given, **how))[1]

    class Parsing(parquet.ParquetFile):
        def __init__(self, source: Any, metadata: Any = None, **how: Any) -> None:
            parsed.extend([] if metadata is not None else ["footer"])
            super().__init__(source, metadata=metadata, **how)

    for name in ("Footer", "_leaf_columns"):
        monkeypatch.setattr(parquet_format, name, counted(name, getattr(parquet_format, name)))
    monkeypatch.setattr(parquet_format.pq, "ParquetFile", Parsing)
    chunks = [FileSplit(file, RowRange(start, rows // 4)) for start in range(0, rows, rows // 4)]
    read = [one for c in chunks for one in ParquetFormat().read(store, c, table.schema, 1 << 20)]
    assert pa.concat_tables(read).equals(table)
    assert sorted(looks) == ["Footer", "_leaf_columns"]
    assert parsed == ["footer"]


def test_memory_that_runs_out_is_not_taken_for_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a file would be left out under ``on_error="skip"``."""
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"id": [1, 2, 3]}), path)
    file, store = DataFileInfo(str(path)), LocalStore()

    def without_memory(*given: Any, **how: Any) -> None:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr(parquet_format.pq, "ParquetFile", without_memory)
    with pytest.raises(MemoryError, match="malloc"):
        ParquetFormat().inspect(store, file)
    with pytest.raises(MemoryError, match="malloc"):
        list(ParquetFormat().read(store, FileSplit(file), pa.schema({"id": pa.int64()}), 1 << 20))


def test_the_limits_of_thrift_hold_where_a_footer_is_fetched_again(memory_store: Store) -> None:
    """In a worker process, say, which has not seen it yet."""
    file = DataFileInfo("memory://limits/a.parquet")
    schema = pa.schema({"id": pa.int64()})
    with pytest.raises(ReadError, match="not readable as Parquet"):
        list(
            ParquetFormat({"thrift_container_size_limit": 1}).read(
                memory_store, FileSplit(file), schema, 1 << 20
            )
        )
    (table,) = ParquetFormat().read(memory_store, FileSplit(file), schema, 1 << 20)
    assert table["id"].to_pylist() == [1, 2, 3]


@pytest.fixture
def memory_store() -> Iterator[Store]:
    files = fsspec.filesystem("memory")
    body = io.BytesIO()
    parquet.write_table(pa.table({"id": [1, 2, 3]}), body)
    files.pipe("/limits/a.parquet", body.getvalue())
    yield store_for("memory://limits")
    files.rm("/limits", recursive=True)


def test_checksums_of_pages_are_verified_if_asked_for(tmp_path: Path) -> None:
    """In order and by index; pages that are whole are still read."""
    path, numbers = tmp_path / "a.parquet", np.arange(20_000, dtype=np.float64)
    plain = {"compression": "none", "use_dictionary": False}
    parquet.write_table(
        pa.table({"x": numbers}), path, row_group_size=5_000, write_page_checksum=True, **plain
    )
    raw = bytearray(path.read_bytes())
    raw[raw.index(numbers[7_001].tobytes()) + 3] ^= 1
    path.write_bytes(raw)
    loader, dataset = StructuredDataset.create_dataloader(
        path,
        "parquet",
        num_workers=0,
        batch_size=5_000,
        split_rows=5_000,
        format_options={"page_checksum_verification": True},
    )
    batches = iter(loader)
    assert next(batches)["x"].tolist() == numbers[:5_000].tolist()
    with pytest.raises(ReadError, match="CRC checksum verification failed"):
        list(batches)
    assert dataset.rows.batch([19_000, 3])["x"].tolist() == [19_000, 3]
    with pytest.raises(ReadError, match="CRC checksum verification failed"):
        dataset.rows.batch([7_001])
    # Decoded row groups that were read without verification are not used where it is asked for.
    small: dict[str, Any] = {"num_workers": 0, "batch_size": 500, "split_rows": 500}
    list(StructuredDataset.create_dataloader(path, **small)[0])
    small["format_options"] = {"page_checksum_verification": True}
    with pytest.raises(ReadError, match="CRC checksum verification failed"):
        list(StructuredDataset.create_dataloader(path, **small)[0])
