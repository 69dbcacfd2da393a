"""A filter that is wrong is an error in any mode, and never taken for broken data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from headrace import ArrowDataset, OptionError, StructuredDataset
from headrace.loader._dataset import TabularDataset

TABLE = pa.table({"a": [1, 2, 2**63 - 1, 4], "word": ["1", "2", "three", "4"]})
NO_FILTERS = {
    "a sum": pc.field("a") + 1,
    "a column": pc.field("word"),
    "a number": pc.scalar(1),
    "nothing": pc.scalar(None),
}
FAILING = {
    "overflow": pc.field("a") + 1 > 0,
    "cast": pc.field("word").cast(pa.int64()) > 0,
    "constants": pc.add_checked(pc.scalar(2**63 - 1), 1) > pc.field("a"),
}
WRITERS: dict[str, Callable[[pa.Table, str], None]] = {
    "parquet": pq.write_table,
    "orc": orc.write_table,
    "csv": pyarrow.csv.write_csv,
    "arrow": lambda table, path: pyarrow.feather.write_feather(table, path, "uncompressed"),
}


def opened(folder: Path, format_: str, filters: ds.Expression, mode: str) -> TabularDataset:
    """A dataset over a file, by rows of a backend where the format is "rows"."""
    kind = "arrow" if format_ == "rows" else format_
    WRITERS[kind](TABLE, str(folder / f"rows.{kind}"))
    if format_ == "rows":
        return ArrowDataset(folder, filters=filters, on_error=mode)
    return StructuredDataset(folder, kind, filters=filters, on_error=mode)


@pytest.mark.parametrize("mode", ["raise", "skip"])
@pytest.mark.parametrize("filters", NO_FILTERS.values(), ids=NO_FILTERS)
@pytest.mark.parametrize("format_", [*WRITERS, "rows"])
def test_what_is_not_boolean_is_refused_at_once(
    tmp_path: Path, format_: str, filters: ds.Expression, mode: str
) -> None:
    with pytest.raises(OptionError, match="and not bool"):
        opened(tmp_path, format_, filters, mode)


@pytest.mark.parametrize("mode", ["raise", "skip"])
@pytest.mark.parametrize("filters", FAILING.values(), ids=FAILING)
@pytest.mark.parametrize("format_", [*WRITERS, "rows"])
def test_what_cannot_be_computed_is_an_error(
    tmp_path: Path, format_: str, filters: ds.Expression, mode: str
) -> None:
    dataset = opened(tmp_path, format_, filters, mode)
    with pytest.raises(OptionError, match=r"rows\.\w+.*cannot be applied"):
        list(dataset)


def test_workers_report_it_too(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, filters=FAILING["cast"], on_error="skip", num_workers=1
    )
    with pytest.raises(OptionError, match=r"a\.parquet.*cannot be applied"):
        list(loader)


@pytest.mark.parametrize("filters", [pc.field("part") + 1, pc.field("part") + 2**62 + 2**62 > 0])
def test_filters_over_paths_alone(tmp_path: Path, filters: ds.Expression) -> None:
    (tmp_path / "part=1").mkdir()
    pq.write_table(TABLE, tmp_path / "part=1" / "a.parquet")
    with pytest.raises(OptionError, match="filters"):
        StructuredDataset(tmp_path, partitioning="hive", filters=filters, on_error="skip")


def test_files_that_are_broken_are_still_skipped(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.warns(UserWarning, match=r"b\.parquet"):
        dataset = StructuredDataset(
            tmp_path, filters=pc.field("a") > 1, on_error="skip", output_format="arrow"
        )
    assert sum(batch.num_rows for batch in dataset) == 3
