"""Windows: the rows of many tables, sorted by their keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import StructuredDataset
from headrace.convert import Converter
from headrace.loader import _pipeline as pipeline
from headrace.loader._pipeline import Window
from headrace.plan import ROW_ORDER, permutation, row_keys, stable_order


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
)
def test_rows_come_out_in_the_order_of_their_keys(
    sizes: list[int], parts: int, bits: int, seed: int
) -> None:
    count = sum(sizes)
    keys = np.random.default_rng(seed).integers(0, 1 << bits, count).astype(np.uint32)
    table = rows(count)
    window = Window(parts, bits)
    starts = np.cumsum([0, *sizes])
    for start, size in reversed(list(zip(starts.tolist(), sizes, strict=False))):
        window.put(start, table.slice(start, size), keys[start : start + size])
    windows = [part for part in map(window.part, range(window.parts)) if part is not None]
    assert pa.concat_tables(windows).equals(table.take(np.argsort(keys, kind="stable")))


def words(number: int) -> pa.Array:
    return pa.array([f"{number} {word}" for word in range(100)])


@pytest.mark.parametrize(
    "type_",
    [
        pa.string(),
        pa.string_view(),
        pa.binary(7),
        pa.dictionary(pa.int8(), pa.string()),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
        pa.run_end_encoded(pa.int32(), pa.string()),
    ],
    ids=str,
)
@pytest.mark.parametrize("parts", [1, 4])
def test_columns_that_pyarrow_cannot_take_or_join(type_: pa.DataType, parts: int) -> None:
    texts = [words(number) for number in range(4)]  # all of them together exceed the codes of int8
    if pa.types.is_list(type_):
        chunks = [
            pa.ListArray.from_arrays(pa.array(range(101), pa.int32()), text.dictionary_encode())
            for text in texts
        ]
        chunks = [chunk.cast(type_) for chunk in chunks]
    elif pa.types.is_fixed_size_binary(type_):
        chunks = [pa.array([f"{text!s:>7}"[:7].encode() for text in some], type_) for some in texts]
    elif pa.types.is_run_end_encoded(type_):
        chunks = [
            pa.RunEndEncodedArray.from_arrays(pa.array(range(1, 101), pa.int32()), text)
            for text in texts
        ]
    elif pa.types.is_dictionary(type_):
        chunks = [text.dictionary_encode().cast(type_) for text in texts]
    else:
        chunks = [text.cast(type_) for text in texts]
    schema = pa.schema([("s", type_), ("i", pa.int64())])
    converter = Converter(schema, "numpy")
    window = Window(parts, 32)
    keys = np.random.default_rng(1).integers(0, 1 << 32, 400).astype(np.uint32)
    for number, chunk in enumerate(chunks):
        start = 100 * number
        table = pa.Table.from_arrays([chunk, pa.array(range(start, start + 100))], schema=schema)
        window.put(start, converter.movable(table), keys[start : start + 100])
    parts_made = [part for part in map(window.part, range(window.parts)) if part is not None]
    batches = [next(converter.build(part).batches(400)) for part in parts_made]
    found = [value for batch in batches for value in batch["s"]]
    order = np.argsort(keys, kind="stable").tolist()
    values = [value for chunk in chunks for value in chunk.to_pylist()]
    assert found == [values[row] for row in order]
    assert np.concatenate([batch["i"] for batch in batches]).tolist() == order


def test_a_window_without_rows() -> None:
    window = Window(4, 32)
    assert [window.part(index) for index in range(window.parts)] == [None] * 4


def test_filtered_rows_are_not_in_memory_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare the memory in use with the rows that are in the window, whenever a table is put."""
    folder, count = tmp_path / "data", 40_000
    folder.mkdir()
    whole = pa.table({f"c{number}": np.arange(count) for number in range(40)})
    pq.write_table(whole, folder / "a.parquet", row_group_size=count // 20)
    monkeypatch.setattr(pipeline, "_PART_BYTES", 1 << 20)
    in_use: list[int] = []
    put = Window.put

    def put_and_look(window: Window, first_row: int, rows: pa.Table, keys: Any) -> None:
        put(window, first_row, rows, keys)
        in_use.append(pa.total_allocated_bytes() - before)

    monkeypatch.setattr(Window, "put", put_and_look)
    loader, _ = StructuredDataset.create_dataloader(
        folder, shuffle=True, num_workers=0, filters=pc.field("c0") >= 0
    )
    del whole
    before = pa.total_allocated_bytes()
    assert sum(len(batch["c0"]) for batch in loader) == count
    assert len(in_use) == 20
    assert in_use[-1] < 1.5 * 40 * 8 * count


@pytest.mark.parametrize("start", [0, 1, 2, 3, 4, 5, 1023, 99_999])
def test_keys_of_any_part_are_those_of_the_whole(start: int) -> None:
    coordinates = {"seed": 3, "epoch": 2, "purpose": ROW_ORDER, "lane": 1, "window": 4}
    whole = row_keys(0, 100_010, **coordinates)
    assert np.array_equal(row_keys(start, 11, **coordinates), whole[start : start + 11])
    assert np.array_equal(stable_order(whole), permutation(100_010, **coordinates))
