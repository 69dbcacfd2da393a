"""ArrayRecord files with ``decode=``: values reach their columns unchanged, or are refused."""

from __future__ import annotations

import datetime as dt
import json
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from array_record_files import write_records

from headrace import ArrayRecordDataset
from headrace.access import ArrayRecordBackend
from headrace.errors import ReadError

NOON = dt.datetime(2026, 1, 2, 12)
REFUSED: dict[str, tuple[Any, Any]] = {
    "fraction": (1, 0.5),
    "nan": (1, math.nan),
    "bool for int": (1, True),
    "int for bool": (True, 1),
    "bool for float": (0.5, True),
    "text for int": (1, "1"),
    "int for text": ("1", 1),
    "large int": (1, 2**63),
    "int that is no float": (0.5, 2**53 + 1),
    "decimal for int": (1, Decimal("1.5")),
    "int for time": (NOON, 5),
    "zone": (NOON, NOON.replace(tzinfo=dt.UTC)),
    "time for date": (NOON.date(), NOON),
    "fraction in a list": ([1], [1, 0.5]),
    "fraction in an array": ([1], np.array([0.5])),
    "truth in an array": ([1], np.array([True])),
    "bytes for a list": ([1], b"12"),
    "fraction in a struct": ({"x": 1}, {"x": 0.5}),
    "less in a struct": ({"x": 1, "y": 1}, {"x": 1}),
    "more in a struct": ({"x": 1}, {"x": 1, "y": 1}),
    "struct in a list": ([{"x": 1}], [{"x": 1}, {"x": 0.5}]),
}
"""a value of the first record, and one of the second that does not fit its type"""

KEPT: dict[str, tuple[Any, Any]] = {
    "int as float": (0.5, 1),
    "whole float as int": (1, 2.0),
    "numpy": (1, np.int32(7)),
    "null": (1, None),
    "null in a list": ([1], [None, 3]),
    "array": ([0.5], np.array([0.25, 4.0])),
    "ints as floats in a list": ([0.5], [1, 2]),
    "none in a list": ([1], []),
}


def unpickled(record: bytes) -> dict[str, Any]:
    found: dict[str, Any] = pickle.loads(record)
    return found


def written(path: Path, *rows: dict[str, Any]) -> Path:
    return write_records(path / "a.array_record", [pickle.dumps(row) for row in rows])


def streamed(path: Path, **options: Any) -> list[dict[str, Any]]:
    loader, _ = ArrayRecordDataset.create_dataloader(
        path, output_format="arrow", batch_size=10, num_workers=0, **options
    )
    return [row for batch in loader for row in batch.to_pylist()]


def ways(path: Path, **options: Any) -> list[Callable[[], Any]]:
    """Every way to read the second record."""
    backend = ArrayRecordBackend(path, **options)
    return [
        partial(backend.get_row, 1),
        partial(backend.take, [0, 1]),
        lambda: backend.table,
        partial(streamed, path, **options),
    ]


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> ArrayRecordBackend:
    """A column for each case; each record after the first has another value in one of them."""
    cases = {**REFUSED, **KEPT}
    first = {case: value for case, (value, _) in cases.items()}
    others = [first | {case: value} for case, (_, value) in cases.items()]
    path = written(tmp_path_factory.mktemp("changing"), first, *others)
    return ArrayRecordBackend(path, decode=unpickled)


@pytest.mark.parametrize("row", range(1, len(REFUSED) + 1), ids=list(REFUSED))
def test_a_value_that_would_change_is_refused(changing: ArrayRecordBackend, row: int) -> None:
    case = list(REFUSED)[row - 1]
    refused = rf"a\.array_record: record {row} does not fit the columns: .*'{case}.*schema"
    for rows in ([row], [0, row]):
        with pytest.raises(ReadError, match=refused):
            changing.take(rows, columns=[case])
    with pytest.raises(ReadError, match=refused):
        changing.get_row(row)
    other = next(name for name in REFUSED if name != case)
    assert changing.take([row], columns=[other]).num_rows == 1


@pytest.mark.parametrize("row", range(len(REFUSED) + 1, len(REFUSED) + len(KEPT) + 1), ids=KEPT)
def test_a_value_of_another_kind_that_fits_is_kept(changing: ArrayRecordBackend, row: int) -> None:
    case, (_, value) = list(KEPT.items())[row - len(REFUSED) - 1]
    expected = value.tolist() if isinstance(value, np.ndarray) else value
    assert changing.get_row(row)[case] == expected
    assert changing.take([0, row])[case].to_pylist()[1] == expected


def test_streams_and_rows_refuse_the_same(tmp_path: Path) -> None:
    path = written(tmp_path, {"id": 0, "v": 1}, {"id": 1, "v": 0.5})
    for read in ways(path, decode=unpickled):
        with pytest.raises(ReadError, match=r"a\.array_record: record 1 .*'v' should be int64"):
            read()
    assert streamed(path, decode=unpickled, columns=["id"]) == [{"id": 0}, {"id": 1}]


def test_the_message_says_what_was_expected_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    records = [b'{"score": 1}', b'{"score": 0.5}']
    path = write_records(tmp_path / "a.array_record", records)
    backend = ArrayRecordBackend(path, decode=json.loads)
    with pytest.raises(ReadError) as caught:
        backend.get_row(1)
    said = str(caught.value)
    for words in (f"{path}: record 1", "'score'", "int64", "0.5 (float)", "(function, schema)"):
        assert words in said
    told = ArrayRecordBackend(path, decode=(json.loads, pa.schema([("score", pa.float64())])))
    assert told.table["score"].to_pylist() == [1.0, 0.5]


def test_records_have_the_columns_of_the_first(tmp_path: Path) -> None:
    for number, (second, words) in enumerate(
        [({"a": 1}, r"column 'b' \(int64\) is missing"), ({"a": 1, "b": 2, "c": 3}, "'c' is no")]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = written(folder, {"a": 1, "b": 2}, second)
        for read in ways(path, decode=unpickled):
            with pytest.raises(ReadError, match=rf"record 1 does not fit the columns: {words}"):
                read()


def test_a_schema_says_what_may_be_missing(tmp_path: Path) -> None:
    path = written(tmp_path, {"a": 1, "b": {"x": 1}}, {"a": 2})
    inner = pa.struct([pa.field("x", pa.int8(), nullable=False)])
    for nullable in (True, False):
        schema = pa.schema([("a", pa.int32()), pa.field("b", inner, nullable=nullable)])
        backend = ArrayRecordBackend(path, decode=(unpickled, schema))
        if nullable:
            assert backend.table.to_pylist() == [{"a": 1, "b": {"x": 1}}, {"a": 2, "b": None}]
        else:
            with pytest.raises(ReadError, match=r"record 1 .*column 'b'.* is missing"):
                backend.take([0, 1])
    for bad, words in (({"a": 1, "b": None}, "'b'.*not nullable"), ({"a": 1, "b": {}}, r"'b\.x'")):
        written(tmp_path, bad)
        backend = ArrayRecordBackend(path, decode=(unpickled, schema))
        with pytest.raises(ReadError, match=f"record 0 .*{words}"):
            backend.get_row(0)


def test_keys_that_a_schema_does_not_have(tmp_path: Path) -> None:
    """One whose name is spelled otherwise would leave its column empty."""
    path = written(tmp_path, {"score": 1})
    backend = ArrayRecordBackend(path, decode=(unpickled, pa.schema([("scores", pa.int64())])))
    with pytest.raises(ReadError, match=r"record 0 .*'score' is no column"):
        backend.get_row(0)


NARROW: dict[str, tuple[pa.DataType, Any]] = {
    "int8": (pa.int8(), 300),
    "uint8": (pa.uint8(), -1),
    "float16": (pa.float16(), 2049),
    "float32": (pa.float32(), 1e300),
    "float32 of ints": (pa.float32(), 2**24 + 1),
    "seconds": (pa.timestamp("s"), NOON.replace(microsecond=5)),
    "duration": (pa.duration("s"), dt.timedelta(microseconds=5)),
    "decimal": (pa.decimal128(5, 1), Decimal("1.55")),
    "dictionary": (pa.dictionary(pa.int8(), pa.int64()), 0.5),
    "map": (pa.map_(pa.string(), pa.int64()), {"a": 0.5}),
    "array of times": (pa.list_(pa.timestamp("us")), np.array(["2026-01-02"], "M8[ms]")),
}


def test_a_given_type_that_does_not_hold_a_value(tmp_path: Path) -> None:
    schema = pa.schema([(case, type_) for case, (type_, _) in NARROW.items()])
    path = written(tmp_path, *({case: value} for case, (_, value) in NARROW.items()))
    backend = ArrayRecordBackend(path, decode=(unpickled, schema))
    for row, case in enumerate(NARROW):
        with pytest.raises(ReadError, match=f"record {row} does not fit .*: column '{case}"):
            backend.get_row(row)


def test_a_given_type_may_round_floats_and_count_time(tmp_path: Path) -> None:
    path = written(tmp_path, {"v": 0.1, "at": 5})
    schema = pa.schema([("v", pa.float32()), ("at", pa.timestamp("s"))])
    row = ArrayRecordBackend(path, decode=(unpickled, schema)).get_row(0)
    assert row == {"v": float(np.float32(0.1)), "at": dt.datetime(1970, 1, 1, 0, 0, 5)}


def test_records_that_do_not_fit_can_be_skipped(tmp_path: Path) -> None:
    path = written(tmp_path, *({"v": number if number % 4 else 0.5} for number in range(1, 12)))
    with pytest.warns(UserWarning, match=r"record 3 .*0\.5 \(float\).*1 more"):
        found = streamed(path, decode=unpickled, on_error="skip")
    assert [row["v"] for row in found] == [number for number in range(1, 12) if number % 4]
