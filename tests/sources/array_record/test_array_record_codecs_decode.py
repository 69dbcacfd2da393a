"""ArrayRecord files with ``decode=``: values reach their columns unchanged, or are refused."""

from __future__ import annotations

import datetime as dt
import json
import math
import pickle
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch
from array_record_files import write_records
from PIL import Image

from headrace import ArrayRecordDataset
from headrace.access import ArrayRecordBackend, RowDataset
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


# --- arrays, tensors, images


def decode_record(data: bytes) -> tuple[int, np.ndarray]:  # type: ignore[type-arg]
    """A label and an image of any size, as users write such functions."""
    label, height, width = struct.unpack("<III", data[:12])
    return label, np.frombuffer(data, np.uint8, offset=12).reshape(height, width, 3)


def images(path: Path, shapes: list[tuple[int, int]]) -> Path:
    records = [
        struct.pack("<III", label, *shape) + bytes([label]) * (3 * shape[0] * shape[1])
        for label, shape in enumerate(shapes)
    ]
    return write_records(path / "a.array_record", records)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_that_returns_a_tuple_with_an_image(tmp_path: Path, workers: int) -> None:
    shapes = [(4, 6)] * 10 + [(2, 3), (5, 5)]
    path = images(tmp_path, shapes)
    loader, dataset = ArrayRecordDataset.create_dataloader(
        path, decode=decode_record, batch_size=10, num_workers=workers
    )
    assert dataset.backend.schema.names == ["0", "1"]
    first, last = sorted(loader, key=lambda batch: int(batch["0"][0]))
    assert first["1"].shape == (10, 4, 6, 3)
    assert first["1"].dtype == torch.uint8
    assert first["1"][:, 0, 0, 0].tolist() == first["0"].tolist()
    assert [tuple(one.shape) for one in last["1"]] == [(2, 3, 3), (5, 5, 3)]
    row = dataset.backend.get_row(11)
    assert row["0"] == 11
    assert row["1"].shape == (5, 5, 3)
    rows = RowDataset(dataset.backend)
    assert rows.batch([0, 1])["1"].shape == (2, 4, 6, 3)
    assert rows[10]["1"].shape == (2, 3, 3)


class Named(NamedTuple):
    label: int
    image: Any


def test_names_of_tuples(tmp_path: Path) -> None:
    path = images(tmp_path, [(1, 1)])
    assert (
        ArrayRecordBackend(path, decode=lambda data: Named(*decode_record(data))).get_row(0)[
            "label"
        ]
        == 0
    )
    schema = pa.schema([("label", pa.int32()), ("image", pa.list_(pa.list_(pa.list_(pa.uint8()))))])
    backend = ArrayRecordBackend(path, decode=(decode_record, schema))
    assert backend.get_row(0) == {"label": 0, "image": [[[0, 0, 0]]]}
    short = ArrayRecordBackend(path, decode=(lambda data: decode_record(data)[:1], schema))
    with pytest.raises(ReadError, match=r"record 0 .*'0' is no column"):
        short.get_row(0)


ARRAYS: dict[str, tuple[Any, Any]] = {
    "array": (np.arange(3, dtype=np.int16), np.arange(3, dtype=np.int16)),
    "no dimension": (np.array(2.5), 2.5),
    "tensor": (torch.ones(2, 3), np.ones((2, 3), np.float32)),
    "with a gradient": (torch.ones(2, requires_grad=True), np.ones(2, np.float32)),
    "of no items": (np.empty((0, 4)), np.empty((0, 4))),
    "fortran": (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T),
    "complex": (np.array([1 + 2j]), np.array([1 + 2j])),
    "bool": (np.array([[True]]), np.array([[True]])),
    "color image": (Image.new("RGB", (4, 2), (1, 2, 3)), np.full((3, 2, 4), [[[1]], [[2]], [[3]]])),
    "grey image": (Image.new("L", (4, 2), 7), np.full((1, 2, 4), 7)),
    "deep image": (Image.new("I;16", (4, 2), 700), np.full((1, 2, 4), 700)),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_come_as_they_are(tmp_path: Path, kind: str) -> None:
    value, expected = ARRAYS[kind]
    path = write_records(tmp_path / "a.array_record", [b"0", b"1"])
    backend = ArrayRecordBackend(path, decode=lambda _: {"v": value})
    found = backend.get_row(1)["v"]
    assert np.array_equal(found, expected)
    assert np.shape(found) == np.shape(expected)
    if isinstance(expected, np.ndarray) and not hasattr(value, "getbands"):
        assert found.dtype == expected.dtype
    batch = RowDataset(backend, output_format="numpy").batch([0, 1])["v"]
    assert np.array_equal(batch, np.stack([expected, expected]))


def test_arrays_may_differ_in_type_and_be_missing(tmp_path: Path) -> None:
    """Integers first do not cut off the fractions that follow."""
    path = written(tmp_path, {"v": np.array([1, 2])}, {"v": np.array([0.5])}, {"v": None})
    backend = ArrayRecordBackend(path, decode=unpickled)
    found = [backend.get_row(row)["v"] for row in range(3)]
    assert found[0].tolist() == [1, 2]
    assert found[1].tolist() == [0.5]
    assert found[2] is None


@pytest.mark.parametrize("other", [[1, 2], 5, "x", np.array([None]), np.array(["x"])], ids=repr)
def test_what_is_no_array_where_the_first_is_one(tmp_path: Path, other: Any) -> None:
    path = written(tmp_path, {"v": np.array([1, 2])}, {"v": other})
    with pytest.raises(ReadError, match=r"record 1 .*'v' should be an array of numbers"):
        ArrayRecordBackend(path, decode=unpickled).take([0, 1])


def test_a_tensor_that_numpy_cannot_hold(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.array_record", [b"0"])
    with pytest.raises(ReadError, match="record 0 cannot be decoded: TypeError"):
        ArrayRecordBackend(path, decode=lambda _: {"v": torch.ones(2, dtype=torch.bfloat16)})
