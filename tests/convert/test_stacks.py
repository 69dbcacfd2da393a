"""The options stack= and cast=: many columns in one tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import headrace
from headrace import (
    NUMERIC,
    ArrowDataset,
    ConversionError,
    OptionError,
    SchemaError,
    StructuredDataset,
)

ROWS = 5_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stacks")
    rng = np.random.default_rng(3)
    with_nulls: list[float | None] = list(rng.normal(size=ROWS))
    with_nulls[7] = None
    table = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "f0": pa.array(rng.normal(size=ROWS), pa.float32()),
            "f1": pa.array(rng.integers(0, 9, ROWS), pa.int16()),
            "f2": pa.array(with_nulls, pa.float64()),
            "flag": pa.array(rng.integers(0, 2, ROWS) == 1),
            "name": pa.array([str(n) for n in range(ROWS)]),
            "pair": pa.array([[n, n + 1] for n in range(ROWS)], pa.list_(pa.int32(), 2)),
            "tokens": pa.array([[n] * (n % 3) for n in range(ROWS)], pa.list_(pa.int64())),
            "s": pa.array([{"a": n} for n in range(ROWS)], pa.struct({"a": pa.int32()})),
        }
    )
    pq.write_table(table, folder / "part.parquet", row_group_size=700)
    return folder


def _epoch(folder: Path, **options: Any) -> list[Any]:
    loader, _ = StructuredDataset.create_dataloader(folder, batch_size=333, **options)
    return list(loader)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("shuffle", [{}, {"shuffle": True, "split_rows": 500, "mix": 4}])
@pytest.mark.parametrize("output_format", ["torch", "numpy"])
def test_a_stack_holds_the_columns_row_by_row(
    folder: Path, workers: int, shuffle: dict[str, Any], output_format: str
) -> None:
    options = {"num_workers": workers, "output_format": output_format, **shuffle}
    alone = _epoch(folder, **options)
    stacked = _epoch(folder, stack={"x": ["f2", "f0", "f1"]}, **options)
    assert len(alone) == len(stacked) == -(-ROWS // 333)
    for before, after in zip(alone, stacked, strict=True):
        assert set(after) == {"id", "flag", "name", "pair", "tokens", "s", "x"}
        assert str(after["x"].dtype).endswith("float64")
        expected = np.stack([np.asarray(before[name]) for name in ("f2", "f0", "f1")], 1)
        np.testing.assert_array_equal(np.asarray(after["x"]), expected)
        np.testing.assert_array_equal(np.asarray(after["id"]), np.asarray(before["id"]))


@pytest.mark.parametrize(
    ("chosen", "columns"),
    [
        ("f*", ["f0", "f1", "f2", "flag"]),
        (["f?"], ["f0", "f1", "f2"]),
        (NUMERIC, ["id", "f0", "f1", "f2"]),
        ([NUMERIC, "!id"], ["f0", "f1", "f2"]),
        (["f1", "f?", "f0"], ["f1", "f0", "f2"]),
        (["f?", "!f[01]"], ["f2"]),
    ],
)
def test_columns_are_chosen_by_names_and_patterns(
    folder: Path, chosen: Any, columns: list[str]
) -> None:
    alone = _epoch(folder)[0]
    batch = _epoch(folder, stack={"x": chosen}, cast="float32")[0]
    assert batch["x"].dtype == torch.float32
    assert not set(columns) & set(batch)
    expected = torch.stack([alone[name].float() for name in columns], 1)
    assert torch.equal(batch["x"].nan_to_num(-1.0), expected.nan_to_num(-1.0))


def test_several_stacks_may_share_columns(folder: Path) -> None:
    batch = _epoch(folder, columns=["f0", "f1", "flag"], stack={"a": "f?", "b": ["f0", "flag"]})[0]
    assert list(batch) == ["a", "b"]
    assert torch.equal(batch["a"][:, 0], batch["b"][:, 0])


def test_types_by_key(folder: Path) -> None:
    casts = {"x": torch.float16, "tokens": "int32", "id": np.float64, "s.a": "int8"}
    batch = _epoch(folder, stack={"x": ["f0", "f1"]}, cast=casts)[0]
    assert batch["x"].dtype == torch.float16
    assert batch["tokens"][2].dtype == torch.int32
    assert batch["id"].dtype == torch.float64
    assert batch["s"]["a"].dtype == torch.int8
    assert batch["f2"].dtype == torch.float64


def test_nulls_of_stacked_columns(folder: Path) -> None:
    filled = _epoch(folder, stack={"x": ["f0", "f2"]}, nulls={"f2": 5.0})[0]
    assert filled["x"][7, 1] == 5.0
    masked = _epoch(folder, columns=["f0", "f2"], stack={"x": "f?"}, nulls={"f2": "mask"})[0]
    assert list(masked) == ["x", "x_mask"]
    assert masked["x_mask"].nonzero().tolist() == [[7, 1]]


def test_no_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int8())}), tmp_path / "x.parquet")
    assert _epoch(tmp_path, stack={"x": "a"}) == []


def test_a_state_goes_on_with_another_stack(folder: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(folder, batch_size=333, shuffle=True)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    expected = next(batches)
    again, _ = StructuredDataset.create_dataloader(
        folder, batch_size=333, shuffle=True, stack={"x": ["f0", "f1"]}
    )
    again.load_state_dict(state)
    batch = next(iter(again))
    assert torch.equal(batch["id"], expected["id"])
    assert torch.equal(batch["x"][:, 0], expected["f0"])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"stack": ["f0"]}, OptionError, "stack must be a mapping"),
        ({"stack": {"x": 3}}, OptionError, "give names of columns"),
        ({"stack": {"x": [3]}}, OptionError, "takes names of columns"),
        ({"stack": {"x": "flagg"}}, SchemaError, "did you mean 'flag'"),
        ({"stack": {"x": ["f0", "!f0"]}}, SchemaError, "chooses no column"),
        ({"stack": {"x": ["f0", "name"]}}, SchemaError, "'name' does not have one number"),
        ({"stack": {"x": "pair"}}, SchemaError, "'pair' does not have one number"),
        ({"stack": {"id": "f0"}}, SchemaError, "2 values under 'id'"),
        ({"stack": {"x": "f0"}, "cast": {"y": "int8"}}, SchemaError, "no key of numbers"),
        ({"stack": {"x": "f0"}, "cast": {"f0": "int8"}}, SchemaError, "no key of numbers"),
        ({"cast": {"name": "int8"}}, SchemaError, "no key of numbers"),
        ({"cast": "float32"}, OptionError, "stack=, which is not given"),
        ({"stack": {"x": "f0"}, "cast": "S5"}, OptionError, "no number type"),
        ({"stack": {"x": "f0"}, "cast": torch.bfloat16}, OptionError, "bfloat16"),
        ({"cast": {"id": None}}, OptionError, "None is no number type"),
        ({"cast": {"id": ">f4"}}, OptionError, "no number type"),
        ({"cast": {"id": "uint16"}}, OptionError, "torch can do little"),
        ({"cast": {"id": np.longdouble}}, OptionError, "torch can do little"),
        ({"stack": {"x": "f0"}, "output_format": "arrow"}, OptionError, "stack and cast"),
    ],
)
def test_wrong_stacks(
    folder: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _epoch(folder, **options)


def test_a_type_for_a_stack_is_not_for_a_column_of_that_name() -> None:
    table = pa.table({"a": [300, 2**53 + 1], "b": [1, 2]})
    loader, _ = ArrowDataset.create_dataloader(
        table, num_workers=0, stack={"a": ["b"], "y": ["a"]}, cast={"a": "int8"}
    )
    batch = next(iter(loader))
    assert batch["y"].tolist() == [[300], [2**53 + 1]]
    assert batch["a"].dtype == torch.int8


def test_a_name_that_looks_like_a_pattern() -> None:
    table = pa.table({"!n": [1], "f[0]": [2], "n": [3]})
    loader, _ = ArrowDataset.create_dataloader(
        table, num_workers=0, stack={"x": ["!n", "f[0]"], "y": ["*", "!n", "!f*"]}
    )
    assert next(iter(loader))["x"].tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "options", [{"cast": {"f": "int64"}}, {"stack": {"x": "f"}, "cast": "int8"}]
)
def test_values_that_the_type_has_no_place_for(options: dict[str, Any]) -> None:
    table = pa.table({"f": pa.array([None, 1.5], pa.float64())})
    loader, _ = ArrowDataset.create_dataloader(table, num_workers=0, **options)
    with pytest.raises(ConversionError, match="has no place for"):
        next(iter(loader))


def test_rows_by_index_refuse_stacks() -> None:
    table = pa.table({"a": [1], "b": [2]})
    with pytest.raises(OptionError, match="stack and cast are for the batches of streams"):
        ArrowDataset(table, stack={"x": ["a", "b"]}).rows  # noqa: B018


def test_numeric_is_a_public_name() -> None:
    assert repr(headrace.NUMERIC) == "NUMERIC"
    import pickle

    assert pickle.loads(pickle.dumps(NUMERIC)) is NUMERIC
