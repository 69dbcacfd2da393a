"""Windows: the rows of many blocks, sorted by their keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.convert import Converter, concat
from headrace.loader._pipeline import Window
from headrace.plan import ROW_ORDER, permutation, row_keys, stable_order

FORMATS = ["torch", "numpy", "arrow", "dict"]


def rows(count: int) -> pa.Table:
    return pa.table(
        {
            "i": np.arange(count),
            "v": pa.FixedSizeListArray.from_arrays(np.arange(3.0 * count), 3),
            "s": [f"row {i}" for i in range(count)],
            "l": [[i] * (i % 4) for i in range(count)],
        }
    )


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    parts=st.integers(1, 300),
    bits=st.integers(1, 32),
    seed=st.integers(0, 99),
    fmt=st.sampled_from(FORMATS),
)
def test_rows_come_out_in_the_order_of_their_keys(
    sizes: list[int], parts: int, bits: int, seed: int, fmt: str
) -> None:
    count = sum(sizes)
    keys = np.random.default_rng(seed).integers(0, 1 << bits, count).astype(np.uint32)
    table = rows(count)
    converter = Converter(table.schema, fmt)
    window = Window(parts, bits)
    starts = np.cumsum([0, *sizes])
    for start, size in reversed(list(zip(starts.tolist(), sizes, strict=False))):
        block = converter.convert(table.slice(start, size))
        window.put(start, block, keys[start : start + size])
    made = [part for part in map(window.part, range(window.parts)) if part is not None]
    order = np.argsort(keys, kind="stable")
    (expected,) = converter.convert(table).take(order).batches(count)
    (found,) = concat(made).batches(count)
    assert str(found) == str(expected)


def test_a_window_without_rows() -> None:
    window = Window(4, 32)
    assert [window.part(index) for index in range(window.parts)] == [None] * 4


@pytest.mark.parametrize("start", [0, 1, 2, 3, 4, 5, 1023, 99_999])
def test_keys_of_any_part_are_those_of_the_whole(start: int) -> None:
    coordinates = {"seed": 3, "epoch": 2, "purpose": ROW_ORDER, "lane": 1, "window": 4}
    whole = row_keys(0, 100_010, **coordinates)
    assert np.array_equal(row_keys(start, 11, **coordinates), whole[start : start + 11])
    assert np.array_equal(stable_order(whole), permutation(100_010, **coordinates))
