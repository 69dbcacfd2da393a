"""Python values in columns: as they were given, or refused with the place of the row."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.values import Misfit, table_of, type_of

SCALARS = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5)
VALUES = SCALARS | st.floats(width=32) | st.lists(st.integers(0, 9) | st.floats(0, 9), max_size=3)


def one_column(values: list[Any], type_: pa.DataType, *, inferred: bool = False) -> list[Any]:
    schema = pa.schema([("x", type_)])
    rows = [{"x": value} for value in values]
    made: list[Any] = table_of(rows, schema, schema, {}, inferred=inferred)["x"].to_pylist()
    return made


@given(st.lists(VALUES, min_size=1, max_size=6))
def test_a_column_holds_what_was_given_or_is_refused(values: list[Any]) -> None:
    try:
        type_ = type_of(values[:1])
        made = one_column(values, type_)
    except (Misfit, pa.ArrowException):
        return
    for value, kept in zip(values, made, strict=True):
        assert value == kept or value != value  # or is NaN
        assert isinstance(value, bool) == isinstance(kept, bool)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.int64(), np.float32(0.5)),
        (pa.list_(pa.list_(pa.int8())), [[1], [2, 0.5]]),
        (pa.struct([("a", pa.list_(pa.bool_()))]), {"a": [True, 1]}),
        (pa.timestamp("ms"), dt.datetime(2026, 1, 1, microsecond=1)),
        (pa.float16(), 1e6),
        (pa.binary(), "text"),
    ],
    ids=str,
)
def test_the_row_of_a_value_that_does_not_fit_is_found(type_: pa.DataType, value: Any) -> None:
    with pytest.raises(Misfit, match="'x") as caught:
        one_column([None, None, value, None], type_)
    assert caught.value.place == 2


def test_integers_are_points_in_time_only_for_types_that_a_user_gave() -> None:
    assert one_column([5, None], pa.timestamp("s")) == [dt.datetime(1970, 1, 1, 0, 0, 5), None]
    with pytest.raises(Misfit, match="should be timestamp"):
        one_column([5, None], pa.timestamp("s"), inferred=True)
