"""Operations on map-style rows: filters, splits, columns, transforms, maps, concatenation."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from row_tables import ROWS, make_table, picture, sharded
from torch.utils.data import DataLoader

from headrace.access import (
    ArrowBackend,
    ParquetBackend,
    RowDataset,
    ShardShuffleSampler,
    concatenate,
)
from headrace.errors import OptionError, SchemaError, StateMismatchError

RAGGED = {"x": range(6), "tags": [[1] * n for n in range(6)], "text": list("abcdef")}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> RowDataset:
    return RowDataset(sharded(tmp_path_factory.mktemp("shards")))


def in_memory(columns: dict[str, Any], **options: Any) -> RowDataset:
    return RowDataset(ArrowBackend(table=pa.table(columns)), **options)


def ids(rows: RowDataset) -> list[int]:
    result: list[int] = rows["id"].tolist()
    return result


# --- indices and columns


@pytest.mark.parametrize(
    "indices",
    [
        pa.array([3, 1, -1]),
        pa.chunked_array([[3], [1, -1]]),
        torch.tensor([3, 1, -1]),
        np.array([3, 1, -1], np.int8),
        (3, 1, -1),
    ],
    ids=["arrow", "chunks", "tensor", "small", "tuple"],
)
def test_indices_of_any_kind(rows: RowDataset, indices: Any) -> None:
    assert rows[indices]["id"].tolist() == [3, 1, 499]
    assert ids(rows.select(indices)) == [3, 1, 499]
    assert rows.backend.take(indices).column("id").to_pylist() == [3, 1, 499]


@pytest.mark.parametrize("kind", [np.asarray, list, torch.tensor, pa.array])
def test_masks(rows: RowDataset, kind: Any) -> None:
    mask = kind([i % 100 == 7 for i in range(ROWS)])
    assert rows[mask]["id"].tolist() == [7, 107, 207, 307, 407]
    assert ids(rows.select(mask)[1:3]) == [107, 207]
    with pytest.raises(IndexError, match="the mask has 500 values for 10 rows"):
        rows[:10].select(mask)


def test_a_mask_of_nothing(rows: RowDataset) -> None:
    assert len(rows.select(np.zeros(ROWS, bool))) == 0
    assert len(rows[:0].select(np.zeros(0, bool))) == 0


@pytest.mark.parametrize("wrong", [pa.array([1, None]), pa.array([True, None]), pa.array(["a"])])
def test_arrow_arrays_that_are_no_indices(rows: RowDataset, wrong: pa.Array) -> None:
    with pytest.raises(TypeError, match="integers"):
        rows.select(wrong)


def test_columns_by_name(rows: RowDataset) -> None:
    view = rows.shuffle(1)[:20]
    assert ids(view) == [int(row["id"]) for row in view]
    assert view["text"] == [row["text"] for row in view]
    assert view["vector"].shape == (20, 4)
    assert view.with_format("arrow")["id"].to_pylist() == ids(view)
    assert view.with_transform(lambda row: 1)["text"] == view["text"]
    assert len(rows[:0]["text"]) == 0
    with pytest.raises(SchemaError, match="there is no column 'y'"):
        rows["y"]


# --- selections of rows


def test_filter_by_a_function(rows: RowDataset) -> None:
    view = rows[::-1].filter(lambda row: row["id"] % 100 == 3)
    assert ids(view) == [403, 303, 203, 103, 3]
    assert ids(view.filter(lambda row, i: i == 1, with_indices=True)) == [303]
    assert ids(rows.filter(lambda a, b: a + b > 590, input_columns=["id", "small"])) == [
        *range(496, 500)
    ]
    assert ids(rows.filter(lambda i: i < 2, input_columns="id")) == [0, 1]
    assert len(rows.filter(lambda row: False)) == 0
    assert len(rows[:0].filter(lambda row: True)) == 0


def test_filter_by_batches(rows: RowDataset) -> None:
    sizes = []

    def is_even(batch: dict[str, list[Any]], indices: list[int]) -> Any:
        sizes.append(len(indices))
        return np.array(batch["id"]) % 2 == 0

    result = rows.filter(is_even, batched=True, with_indices=True, batch_size=300)
    assert ids(result) == list(range(0, ROWS, 2))
    assert sizes == [300, 200]
    with pytest.raises(OptionError, match="returned 1 values for the 500 rows from row 0 on"):
        rows.filter(lambda batch: [True], batched=True)


@pytest.mark.parametrize(
    "expression",
    [
        pc.field("small") > 97,
        [("small", ">", 97)],
        [[("small", "=", 98)], [("small", "=", 99)]],
    ],
)
def test_filter_by_an_expression(rows: RowDataset, expression: Any) -> None:
    expected = [i for i in range(ROWS) if i % 100 > 97]
    assert ids(rows.filter(expression)) == expected
    assert ids(rows[::-1].filter(expression)) == expected[::-1]
    renamed = rows.rename_column("id", "n").rename_column("small", "id")
    assert renamed.filter(pc.field("id") > 97)["n"].tolist() == expected


def test_a_filter_of_a_column_that_is_not_there(rows: RowDataset) -> None:
    with pytest.raises((OptionError, SchemaError), match="nowhere"):
        rows.filter(pc.field("nowhere") > 1)


@given(
    count=st.integers(2, 200),
    test_size=st.floats(0.01, 0.99),
    seed=st.integers(0, 3),
    shuffle=st.booleans(),
)
def test_a_split_has_every_row_once(count: int, test_size: float, seed: int, shuffle: bool) -> None:
    rows = in_memory({"id": np.arange(count)})
    try:
        parts = rows.train_test_split(test_size=test_size, seed=seed, shuffle=shuffle)
    except OptionError:
        assert int(np.ceil(test_size * count)) == count
        return
    assert list(parts) == ["train", "test"]
    assert len(parts["test"]) == int(np.ceil(test_size * count))
    assert sorted(ids(parts["train"]) + ids(parts["test"])) == list(range(count))
    again = rows.train_test_split(test_size=test_size, seed=seed, shuffle=shuffle)
    assert ids(again["test"]) == ids(parts["test"])


def test_sizes_of_splits(rows: RowDataset) -> None:
    def sizes(*args: Any, **options: Any) -> tuple[int, ...]:
        return tuple(map(len, rows.train_test_split(*args, **options).values()))

    assert sizes() == (375, 125)
    assert sizes(0.1) == (450, 50)
    assert sizes(7) == (493, 7)
    assert sizes(train_size=0.5) == (250, 250)
    assert sizes(test_size=0.1, train_size=100) == (100, 50)
    assert ids(rows.train_test_split(3, shuffle=False)["test"]) == [497, 498, 499]
    for wrong in (0, 500, 1.0, -0.1, True, "half"):
        with pytest.raises(OptionError, match="test_size"):
            rows.train_test_split(wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"500 rows cannot be split into 400 .* and 200"):
        rows.train_test_split(200, 400)
    with pytest.raises(OptionError, match="cannot be split"):
        rows[:1].train_test_split(0.5)


def test_skip_and_take(rows: RowDataset) -> None:
    assert ids(rows.skip(3).take(2)) == [3, 4]
    assert len(rows.skip(1000)) == 0
    assert len(rows.take(1000)) == ROWS
    for wrong in (-1, 1.5, [1], True):
        with pytest.raises(OptionError, match="must be an int"):
            rows.take(wrong)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="must be an int"):
            rows.skip(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("count", [0, 1, 10, 11])
def test_shards_have_every_row_once(rows: RowDataset, count: int, contiguous: bool) -> None:
    parts = [ids(rows.take(count).shard(3, index, contiguous)) for index in range(3)]
    joined = parts[0] + parts[1] + parts[2]
    assert (joined if contiguous else sorted(joined)) == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    with pytest.raises(OptionError, match="less than num_shards=3"):
        rows.shard(3, 3)


# --- columns, formats, transforms


def test_columns_are_removed_and_renamed_without_copies(rows: RowDataset) -> None:
    view = rows.shuffle(2)[:30].remove_columns(["blob", "pair"]).remove_columns("tags")
    view = view.rename_columns({"id": "text", "text": "id"}).rename_column("small", "s")
    assert view.column_names == ["text", "s", "vector", "id"]
    assert view.backend is rows.backend
    assert len(pickle.dumps(view)) < 5_000
    row, origin = pickle.loads(pickle.dumps(view))[7], rows.shuffle(2)[7]
    assert row["text"] == origin["id"]
    assert row["id"] == origin["text"]
    assert row["s"] == origin["small"]
    assert view.batch([7])["id"] == [origin["text"]]
    assert view.select_columns(["id"])[7] == {"id": origin["text"]}
    assert view.flatten()[7]["id"] == origin["text"]
    with pytest.raises(SchemaError, match="no column 'small'"):
        view.rename_columns({"small": "x"})
    with pytest.raises(SchemaError, match="there is a column 's' already"):
        view.rename_columns({"id": "s"})
    with pytest.raises(SchemaError, match="there is a column 'x' already"):
        view.rename_columns({"id": "x", "s": "x"})
    with pytest.raises(SchemaError, match="no column 'tags'"):
        view.remove_columns("tags")


def test_renamed_columns_of_parquet_are_decoded(tmp_path: Path) -> None:
    table = pa.table({"label": range(8), "image": [picture(n) for n in range(8)]})
    pq.write_table(table, tmp_path / "a.parquet")
    rows = RowDataset(ParquetBackend(tmp_path), decode=["image"])
    view = rows.rename_columns({"image": "pixels", "label": "image"})
    batch = view.batch([3, 2])
    assert batch["image"].tolist() == [3, 2]
    assert batch["pixels"].shape == (2, 3, 8, 6)


def test_raw_rows_are_what_is_stored() -> None:
    columns = {"image": [picture(1), picture(2)], "l": [[1], None], "n": [None, 2]}
    rows = in_memory(columns, decode=["image"], nulls={"n": 0, "l": []})
    raw = rows.with_format("raw")
    assert [dict(row) for row in raw] == pa.table(columns).to_pylist()
    assert raw.batch([1]) == {"image": [picture(2)], "l": [None], "n": [2]}
    assert rows.with_format("dict")[0]["image"].shape == (3, 8, 6)
    assert raw.with_format("torch").batch([0, 1])["n"].tolist() == [0, 2]
    assert in_memory({"x": [1]}, output_format="raw")[0] == {"x": 1}
    with pytest.raises(OptionError, match='no effect on output_format="raw"'):
        in_memory(columns, decode=["image"], output_format="raw")
    with pytest.raises(OptionError, match="torch, numpy, arrow, dict, raw"):
        rows.with_format("pil")


def same(row: Any) -> Any:
    return row


def longer(row: dict[str, Any]) -> dict[str, Any]:
    row["x"] = row["x"] * 10
    row["new"] = len(row["tags"])
    return row


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("ragged", ["list", "pad", "offsets", "nested"])
def test_an_identity_transform_changes_nothing(ragged: str, workers: int) -> None:
    rows = in_memory(RAGGED, ragged=ragged)
    plain = list(DataLoader(rows, batch_size=4, num_workers=workers))
    result = list(DataLoader(rows.with_transform(same), batch_size=4, num_workers=workers))
    assert [list(batch) for batch in result] == [list(batch) for batch in plain]
    for batch, expected in zip(result, plain, strict=True):
        assert describe(batch) == describe(expected)


def describe(batch: Any) -> str:
    """Return all values of a batch as text, without the symbol numbers of nested tensors."""
    return re.sub(r"\bj\d+\b", "j", repr(batch))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_leaves_other_columns_alone(workers: int) -> None:
    rows = in_memory(RAGGED).with_transform(longer)
    batches = list(DataLoader(rows, batch_size=3, num_workers=workers))
    assert [batch["x"].tolist() for batch in batches] == [[0, 10, 20], [30, 40, 50]]
    assert [batch["new"].tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5]]
    assert [len(tags) for batch in batches for tags in batch["tags"]] == list(range(6))
    assert rows[[4]]["x"].tolist() == [40]
    assert rows[4]["x"] == 40
    assert rows.with_transform(None)[4]["x"] == 4
    assert rows[[]]["x"].tolist() == []
    with pytest.raises(OptionError, match="transform must be callable"):
        rows.with_transform(1)  # type: ignore[arg-type]


def test_what_a_transform_writes_to_is_collated() -> None:
    def written(row: dict[str, Any]) -> dict[str, Any]:
        row["x"] += 1
        row["pair"]["a"] = torch.tensor(7)
        return row

    rows = in_memory({"x": range(3), "pair": [{"a": i} for i in range(3)]})
    batch = rows.with_transform(written).batch([0, 1, 2])
    assert batch["x"].tolist() == [1, 2, 3]
    assert batch["pair"]["a"].tolist() == [7, 7, 7]
    assert rows.with_transform(lambda row: row["x"]).batch([2, 1]).tolist() == [2, 1]


@pytest.mark.parametrize("ragged", ["list", "pad", "offsets"])
def test_writes_to_lists_and_fields_of_structs_are_collated(ragged: str) -> None:
    def raised(row: Any) -> Any:
        row["l"] += 100
        row["s"]["l"] += 100
        row["s"]["a"] += 100
        return row

    lists = [[i] * (i % 3) for i in range(6)]
    structs = [{"a": i, "l": [i] * (i % 2 + 1)} for i in range(6)]
    chosen = [5, 2, 2, 4, 1]
    plain = RowDataset(ArrowBackend(table=pa.table({"l": lists, "s": structs})), ragged=ragged)
    result = plain.with_transform(raised).batch(chosen)
    lists = [[100 + n for n in values] for values in lists]
    structs = [{"a": 100 + s["a"], "l": [100 + n for n in s["l"]]} for s in structs]
    expected = RowDataset(ArrowBackend(table=pa.table({"l": lists, "s": structs})), ragged=ragged)
    assert str(result) == str(expected.batch(chosen))


# --- maps


def test_map_with_indices_and_columns(rows: RowDataset) -> None:
    view = rows[100:110]
    result = view.map(lambda row, i: {"at": i, "id": row["id"]}, with_indices=True)
    assert result["at"].tolist() == list(range(10))
    assert ids(result) == list(range(100, 110))
    result = view.map(
        lambda batch, places: {"at": places, "twice": [2 * i for i in batch["id"]]},
        with_indices=True,
        batched=True,
        batch_size=4,
        remove_columns=view.column_names,
    )
    assert result.column_names == ["at", "twice"]
    assert result["twice"].tolist() == list(range(200, 220, 2))
    result = view.map(lambda i: {"id": float(i) / 2}, input_columns="id", remove_columns=["id"])
    assert result.column_names[-1] == "id"
    assert result["id"].dtype == torch.float64
    assert result.map(lambda row: {}, remove_columns="text").column_names == [
        name for name in result.column_names if name != "text"
    ]
    with pytest.raises(SchemaError, match="no column 'nothing'"):
        view.map(same, remove_columns="nothing")


def test_batches_may_change_the_number_of_rows(rows: RowDataset) -> None:
    def doubled(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {"id": [i for i in batch["id"] for _ in range(2)]}

    some = rows[:5].select_columns(["id", "text"])
    result = some.map(doubled, batched=True, batch_size=2, remove_columns=["text"])
    assert ids(result) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    with pytest.raises(OptionError, match=r"'id' has 10 values for the 5 rows.*remove_columns"):
        some.map(doubled, batched=True)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, 2, 0.5], pa.float64()),
        ([None, None, "a"], pa.string()),
        ([np.zeros(2), np.zeros(2), np.ones(3)], pa.list_(pa.float64())),
        ([[], [1], [2.5]], pa.list_(pa.float64())),
        ([1, 2, 1 << 40], pa.int64()),
    ],
    ids=["numbers", "nulls", "widths", "lists", "large"],
)
def test_batches_of_different_types_have_one(
    tmp_path: Path, values: list[Any], type_: pa.DataType, cached: bool
) -> None:
    folder = tmp_path / "made" if cached else None
    rows = in_memory({"x": range(3)}, nulls="mask")
    result = rows.map(
        lambda row, i: {"y": values[i]}, with_indices=True, batch_size=1, cache_dir=folder
    )
    assert result.schema.field("y").type == type_
    stored = result.backend.table.column("y").to_pylist()
    assert stored == [value.tolist() if hasattr(value, "tolist") else value for value in values]


def test_batches_of_types_that_do_not_fit(tmp_path: Path) -> None:
    rows = in_memory({"x": range(2)})
    folder = tmp_path / "made"
    for options in ({}, {"cache_dir": folder}):
        with pytest.raises(SchemaError, match="y"):
            rows.map(lambda row: {"y": row["x"] or "a"}, batch_size=1, **options)
    assert list(tmp_path.iterdir()) == []


def test_map_writes_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.access.rows._tables._SHARD_BYTES", 4_000)
    table = make_table().append_column(
        "code", pa.array(["some", "words"] * (ROWS // 2)).dictionary_encode()
    )
    rows = RowDataset(ArrowBackend(table=table)).shuffle(3)
    folder = tmp_path / "a" / "made"
    result = rows.map(lambda row: {"length": len(row["text"])}, batch_size=50, cache_dir=folder)
    assert isinstance(result.backend, ArrowBackend)
    assert result.backend.num_shards > 3
    assert len(pickle.dumps(result)) < 10_000
    assert ids(result) == ids(rows)
    assert result["length"].tolist() == [len(text) for text in rows["text"]]
    assert result["code"] == rows["code"]
    again = RowDataset(ArrowBackend(folder))
    assert ids(again) == ids(result)
    assert [path.name for path in folder.parent.iterdir()] == ["made"]
    with pytest.raises(OptionError, match="is there already"):
        rows.map(lambda row: {"length": 1}, cache_dir=folder)


def test_a_map_that_fails_leaves_nothing(tmp_path: Path, rows: RowDataset) -> None:
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 300:
            raise ZeroDivisionError
        return {"y": 1}

    with pytest.raises(ZeroDivisionError):
        rows.map(fails, batch_size=100, cache_dir=tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_a_map_of_no_rows(tmp_path: Path, rows: RowDataset) -> None:
    for options in ({}, {"cache_dir": tmp_path / "made"}):
        result = rows[:0].map(same, remove_columns="text", **options)
        assert len(result) == 0
        assert "text" not in result.column_names


# --- concatenation


def test_concatenation_of_views_and_sources(tmp_path: Path, rows: RowDataset) -> None:
    pq.write_table(make_table(20), tmp_path / "a.parquet")
    other = RowDataset(ParquetBackend(tmp_path / "a.parquet"))
    mixed = concatenate([rows.shuffle(1)[:5], other, rows])
    expected = [*ids(rows.shuffle(1)[:5]), *range(20), *range(ROWS)]
    assert len(mixed) == ROWS + 25
    assert ids(mixed) == expected
    picks = [524, 3, 24, 3, -1, 5]
    assert mixed[picks]["text"] == [f"row {expected[pick]}" for pick in picks]
    assert mixed.backend.num_shards == 1 + 1 + 4
    assert len(pickle.dumps(mixed)) < 20_000
    nested = pickle.loads(pickle.dumps(concatenate([mixed, mixed[::-1]])))
    assert ids(nested) == expected + expected[::-1]
    loader = DataLoader(mixed, batch_size=64, sampler=ShardShuffleSampler(mixed, seed=2))
    assert sorted(i for batch in loader for i in batch["id"].tolist()) == sorted(expected)


def test_concatenation_keeps_the_options_of_the_first() -> None:
    first = in_memory({"x": [1, None], "y": ["a", "b"]}, nulls={"x": 0}).rename_column("x", "z")
    second = in_memory({"y": ["c"], "z": [5]}, output_format="numpy")
    joined = concatenate([first, second]).with_transform(same)
    assert joined.column_names == ["z", "y"]
    assert joined.batch([2, 1])["z"].tolist() == [5, 0]
    assert joined["y"] == ["a", "b", "c"]
    assert len(concatenate([first.select_columns([]), second.select_columns([])])) == 3
    with pytest.raises(SchemaError, match="dataset 1 cannot follow dataset 0: its column 'x'"):
        concatenate([first, in_memory({"x": [1], "y": ["a"]})])
    with pytest.raises(SchemaError, match="its column 'z' is string, and there int64"):
        concatenate([first, in_memory({"z": ["b"], "y": ["a"]})])
    with pytest.raises(OptionError, match="needs at least one dataset"):
        concatenate([])


# --- samplers


def test_shards_in_order_within() -> None:
    sampler = ShardShuffleSampler([5, 3, 4], seed=1, within_shard="sequential")
    runs = {0: list(range(5)), 5: [5, 6, 7], 8: [8, 9, 10, 11]}
    orders = set()
    for epoch in range(6):
        sampler.set_epoch(epoch)
        rest = list(sampler)
        orders.add(tuple(rest))
        while rest:
            run = runs[rest[0]]
            assert rest[: len(run)] == run
            rest = rest[len(run) :]
    assert len(orders) > 1
    mixed = ShardShuffleSampler([5, 3, 4], seed=1)
    with pytest.raises(StateMismatchError):
        mixed.load_state_dict(sampler.state_dict())
    with pytest.raises(OptionError, match="within_shard"):
        ShardShuffleSampler([5], within_shard="no")


def test_a_view_in_another_order_has_no_shards(rows: RowDataset) -> None:
    assert len(ShardShuffleSampler(rows[:])) == ROWS
    for view in (rows.shuffle(1), rows[::-1], rows[1:]):
        with pytest.raises(OptionError, match="has no shards"):
            ShardShuffleSampler(view)


@pytest.mark.parametrize("what", ["x.arrow", pa.table({"x": [1]})], ids=["path", "table"])
def test_rows_need_a_backend(what: Any) -> None:
    with pytest.raises(TypeError, match="ArrowBackend"):
        RowDataset(what)
