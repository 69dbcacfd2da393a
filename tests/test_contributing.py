"""The example of CONTRIBUTING.md: a user's own source, and its contract."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from headrace import OptionError, ReadError, SourceDataset

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
EXAMPLE: dict[str, Any] = {"__name__": "__main__"}  # as in a script, so workers cannot import it
for _block in BLOCKS:
    exec(compile(_block, str(PAGE), "exec"), EXAMPLE)

if not TYPE_CHECKING:
    TestSqlite = EXAMPLE["TestSqlite"]


def test_the_example_is_short() -> None:
    assert sum(block.count("\n") for block in BLOCKS) < 100


@pytest.fixture
def source(tmp_path: Path) -> Any:
    EXAMPLE["TestSqlite"].write(tmp_path)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    return EXAMPLE["SqliteSource"](sorted(map(str, tmp_path.glob("*.db"))), "events", schema)


def test_columns_and_filters_are_applied(source: Any) -> None:
    dataset = SourceDataset(
        source, columns=["name"], filters=ds.field("name") < "event 10", output_format="dict"
    )
    assert [name for batch in dataset for name in batch["name"]] == ["event 0", "event 1"] * 3
    assert "3 SqliteSource files" in repr(dataset)


def test_rows_that_are_missing_are_an_error(source: Any) -> None:
    dataset = SourceDataset(source)
    with sqlite3.connect(source.paths[1]) as database:
        database.execute("delete from events where rowid > 90")
    with pytest.raises(ReadError, match="10 rows are missing"):
        list(dataset)


def test_what_is_no_source_is_refused() -> None:
    with pytest.raises(OptionError, match="has no schema"):
        SourceDataset(object())  # type: ignore[arg-type]
