from __future__ import annotations

import operator
from datetime import datetime
from decimal import Decimal
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from headrace.sources.files.filters import (
    MAX_DEPTH,
    Constant,
    FilterCall,
    FilterColumn,
    NotTakenApart,
    take_apart,
)


@pytest.mark.parametrize(
    "path", [("x",), ("a", "b"), ("a.b", "c d"), ("q\"'\t\\",), ("\U0001f600 é",), ("",)]
)
def test_columns_are_found_by_their_path(path: tuple[str, ...]) -> None:
    node = take_apart(pc.field(*path) == 1)
    assert isinstance(node, FilterCall)
    assert node.arguments[0] == FilterColumn(path)


@pytest.mark.parametrize(
    "value",
    [
        pa.scalar(True),
        pa.scalar(2**40),
        pa.scalar(1.5, pa.float32()),
        pa.scalar(Decimal("1.20")),
        pa.scalar("tab\t quote\" ' backslash\\ é nul\0"),
        pa.scalar(b"\xff\0"),
        pa.scalar(b"abcd", pa.binary(4)),
        pa.scalar(datetime(2020, 1, 1)),
        pa.scalar(5, pa.timestamp("ns", "Asia/Tokyo")),
        pa.scalar(5, pa.time64("ns")),
        pa.scalar(5, pa.date64()),
        pa.scalar(None, pa.string()),
        pa.scalar(None),
    ],
)
def test_constants_keep_type_and_value(value: pa.Scalar) -> None:
    node = take_apart(pc.field("x") == pc.scalar(value))
    assert isinstance(node, FilterCall)
    constant = node.arguments[1]
    assert isinstance(constant, Constant)
    assert constant.value.type == value.type
    assert constant.value.equals(value)


def test_calls_keep_their_arguments_in_order_and_their_options() -> None:
    x, y = pc.field("x"), pc.field("y")
    node = take_apart(pc.and_not(pc.less(pc.scalar(1), x), x.isin([1, None]) & ~y))
    assert str(node) == "and_not(less(1, x), and_kleene(is_in(x), invert(y)))"
    assert isinstance(node, FilterCall)
    (listed, _) = node.arguments[1].arguments  # type: ignore[union-attr]
    assert isinstance(listed, FilterCall)
    assert listed.options is not None
    assert listed.options["value_set"].as_py() == [1, None]


@pytest.mark.parametrize("right_first", [False, True])
def test_a_chain_is_one_call_however_long(right_first: bool) -> None:
    parts = [pc.field("x") == n for n in range(2000)]
    if right_first:
        chain = reduce(lambda rest, part: part | rest, parts)
    else:
        chain = reduce(operator.or_, parts)
    node = take_apart(chain)
    assert isinstance(node, FilterCall)
    assert (len(node.arguments), node.depth) == (2000, 3)
    assert len(str(node)) < 500


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (pc.field(0) == 1, "non-name"),
        (pc.field("a", 0) == 1, "non-name|position"),
        (reduce(lambda e, _: ~e, range(MAX_DEPTH), pc.field("x")), "levels deep"),
    ],
)
def test_what_is_not_taken_apart_says_why(expression: ds.Expression, reason: str) -> None:
    with pytest.raises(NotTakenApart, match=reason):
        take_apart(expression)
