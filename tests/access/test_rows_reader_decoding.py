"""Columns of images, and of other bytes that a user's function decodes."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from row_tables import picture, rows_of, write_shards
from torch.utils.data import DataLoader

from headrace.access import ArrowBackend, RowDataset
from headrace.errors import OptionError, ReadError, SchemaError, SkippedDataWarning

ROWS = 40
BROKEN = (7, 21, 22)


def image_table(pictures: list[bytes | None], type_: pa.DataType | None = None) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(len(pictures))),
            "image": pa.array(pictures, type_ or pa.binary()),
        }
    )


@pytest.fixture(scope="module")
def backend() -> ArrowBackend:
    kinds = ["PNG", "WEBP", "PNG"]
    return ArrowBackend(table=image_table([picture(i, kinds[i % 3]) for i in range(ROWS)]))


@pytest.fixture
def broken(tmp_path: Path) -> ArrowBackend:
    """Return a backend of four shards of ten rows, in which three rows cannot be decoded."""
    pictures = [b"no" if i in BROKEN else picture(i) for i in range(ROWS)]
    return ArrowBackend(write_shards(tmp_path, image_table(pictures)))


def test_images_become_tensors(backend: ArrowBackend) -> None:
    rows = RowDataset(backend, decode=["image"])
    image = rows[30]["image"]
    assert image.dtype == torch.uint8
    assert image.shape == (3, 8, 6)
    assert image[:, 0, 0].tolist() == [30, 10, 20]
    batch = next(iter(DataLoader(rows, batch_size=ROWS)))
    assert list(batch) == ["id", "image"]
    assert batch["image"].shape == (ROWS, 3, 8, 6)
    assert batch["image"][:, 0, 0, 0].tolist() == list(range(ROWS))


def test_images_by_field_by_mapping_and_by_name(backend: ArrowBackend) -> None:
    field = backend.schema.field("image")
    for decode in ("image", field, [field], ("image",), {"image": "image"}):
        assert RowDataset(backend, decode=decode)[3]["image"].shape == (3, 8, 6)


def test_formats_of_images(backend: ArrowBackend) -> None:
    rows = RowDataset(backend, decode=["image"])
    as_numpy = rows.with_format("numpy")
    assert isinstance(as_numpy[0]["image"], np.ndarray)
    assert as_numpy[[0, 1]]["image"].shape == (2, 3, 8, 6)
    as_dict = rows.with_format("dict")[[0, 1]]["image"]
    assert [image.shape for image in as_dict] == [(3, 8, 6)] * 2
    assert rows.with_format("arrow")[0]["image"][0].as_py() == picture(0)
    with pytest.raises(OptionError, match="decode has no effect"):
        RowDataset(backend, decode=["image"], output_format="arrow")


def test_images_of_other_shapes_are_a_list() -> None:
    table = image_table([picture(0), picture(1, size=(5, 4)), picture(2, "JPEG")])
    rows = RowDataset(ArrowBackend(table=table), decode=["image"])
    images = next(iter(DataLoader(rows, batch_size=3)))["image"]
    assert [tuple(image.shape) for image in images] == [(3, 8, 6), (3, 4, 5), (3, 8, 6)]
    as_array = rows.with_format("numpy")[[0, 1]]["image"]
    assert as_array.dtype == object
    assert [image.shape for image in as_array] == [(3, 8, 6), (3, 4, 5)]


def test_images_in_structs_of_bytes_and_path() -> None:
    stored = [{"bytes": picture(i), "path": f"{i}.png"} for i in range(3)]
    rows = RowDataset(ArrowBackend(table=pa.table({"image": stored})), decode=["image"])
    assert rows[[2, 0]]["image"][:, 0, 0, 0].tolist() == [2, 0]


@pytest.mark.parametrize("type_", [pa.large_binary(), pa.binary_view()], ids=str)
def test_other_types_of_bytes(type_: pa.DataType) -> None:
    rows = RowDataset(ArrowBackend(table=image_table([picture(9)], type_)), decode=["image"])
    assert rows[0]["image"][0, 0, 0] == 9


def test_functions_decode(backend: ArrowBackend) -> None:
    rows = RowDataset(backend, decode={"image": len, "id": lambda value: np.full(2, value)})
    assert rows[4]["image"] == len(picture(4, "WEBP"))
    assert rows[[4, 5]]["id"].tolist() == [[4, 4], [5, 5]]
    assert rows[[0]]["image"].tolist() == [len(picture(0))]


def test_a_row_that_does_not_decode_is_named(broken: ArrowBackend) -> None:
    rows = RowDataset(broken, decode=["image"])
    place = r"row 21 \(row 1 of .*2\.arrow\), column 'image': 2 bytes do not decode"
    with pytest.raises(ReadError, match=place):
        rows[21]
    with pytest.raises(ReadError, match=place):
        rows.__getitems__([1, 21])
    with pytest.raises(ReadError, match=place):
        rows[20:30][1]


def test_nulls_do_not_decode() -> None:
    rows = RowDataset(ArrowBackend(table=image_table([picture(0), None])), decode=["image"])
    with pytest.raises(ReadError, match=r"row 1 .*column 'image': it is null"):
        rows[1]


def test_rows_that_do_not_decode_can_be_skipped(broken: ArrowBackend) -> None:
    rows = RowDataset(broken, decode=["image"], on_error="skip")
    assert rows.skipped == 0
    with pytest.warns(SkippedDataWarning) as warnings_:
        batches = list(DataLoader(rows, batch_size=10))
    assert [len(batch["id"]) for batch in batches] == [9, 10, 8, 10]
    ids = [i for batch in batches for i in batch["id"].tolist()]
    assert ids == [i for i in range(ROWS) if i not in BROKEN]
    assert all(len(batch["image"]) == len(batch["id"]) for batch in batches)
    assert rows.skipped == 3
    assert rows[::2].skipped == 3
    named = [str(warning.message) for warning in warnings_]
    assert [f"row {i} " in text for i, text in zip(BROKEN, named, strict=True)] == [True] * 3
    with pytest.raises(ReadError, match="row 7 "):
        rows[7]
    assert rows.skipped == 3


def test_a_batch_of_which_nothing_is_left(broken: ArrowBackend) -> None:
    rows = RowDataset(broken, decode=["image"], on_error="skip")
    with (
        pytest.warns(SkippedDataWarning, match="row 2[12]"),
        pytest.raises(ReadError, match=r"none of the 2 rows of a batch can be read.* row 21 of"),
    ):
        rows.__getitems__([21, 22])
    with pytest.warns(SkippedDataWarning):
        assert list(rows[21:23]) == []


class Holes(ArrowBackend):
    """A backend of which some rows cannot be read, as in a damaged file."""

    def take(self, indices: Any, **options: Any) -> pa.Table:
        missing = set(BROKEN) & set(np.asarray(indices).tolist())
        if missing:
            raise ReadError(f"record {min(missing)} is damaged")
        return super().take(indices, **options)


def test_rows_that_cannot_be_read_can_be_skipped() -> None:
    backend = Holes(table=image_table([picture(i) if i != 3 else b"" for i in range(ROWS)]))
    with pytest.raises(ReadError, match="record 7 is damaged"):
        list(RowDataset(backend))
    rows = RowDataset(backend, decode=["image"], on_error="skip")
    with pytest.warns(SkippedDataWarning) as warnings_:
        ids = [int(row["id"]) for row in rows]
    assert ids == [i for i in range(ROWS) if i not in (3, *BROKEN)]
    assert len(warnings_) == rows.skipped == 4
    assert "row 21 (row 21 of table): record 21 is damaged" in str(warnings_[2].message)
    with pytest.raises(ReadError, match="record 22 is damaged"):
        rows[22]


@pytest.mark.filterwarnings("ignore:skipped")
def test_workers_count_what_they_skip(broken: ArrowBackend) -> None:
    rows = RowDataset(broken, decode=["image"], on_error="skip")
    loader = DataLoader(rows, batch_size=5, num_workers=2, multiprocessing_context="fork")
    assert sum(len(batch["id"]) for batch in loader) == ROWS - 3
    assert rows.skipped == 3
    assert pickle.loads(pickle.dumps(rows)).skipped == 3


def test_errors_of_code_are_not_errors_of_data(backend: ArrowBackend) -> None:
    def wrong(value: bytes) -> Any:
        return value.no_such_thing  # type: ignore[attr-defined]

    rows = RowDataset(backend, decode={"image": wrong}, on_error="skip")
    with pytest.raises(AttributeError, match="no_such_thing"):
        rows.__getitems__([1, 2])


def test_copies_know_what_is_decoded(backend: ArrowBackend) -> None:
    rows = RowDataset(backend, decode=["image"])
    assert rows.rename_column("image", "picture")[3]["picture"].shape == (3, 8, 6)
    assert list(rows.select_columns(["id"])[0]) == ["id"]
    assert rows[:5].add_column("n", range(5))[4]["image"].shape == (3, 8, 6)
    sizes = rows[:5].map(lambda row: {"image": len(row["image"])})
    assert sizes[0]["image"] == len(picture(0))


def test_only_images(backend: ArrowBackend) -> None:
    for output_format in ("torch", "numpy", "dict"):
        rows = RowDataset(backend, columns=["image"], decode=["image"], output_format=output_format)
        assert list(rows[2]) == ["image"]
        assert len(rows.__getitems__([1, 2, 3])) == 3
        assert [row["image"].shape for row in rows[:2]] == [(3, 8, 6)] * 2
        assert len(next(iter(DataLoader(rows, batch_size=4)))["image"]) == 4


def test_wrong_decoders(backend: ArrowBackend) -> None:
    with pytest.raises(SchemaError, match="decode names the column 'picture'"):
        RowDataset(backend, decode=["picture"])
    with pytest.raises(SchemaError, match="column 'id' cannot hold images"):
        RowDataset(backend, decode=["id"])
    with pytest.raises(OptionError, match='"image" or a function'):
        RowDataset(backend, decode={"image": "jpeg"})
    with pytest.raises(OptionError, match="decode must be"):
        RowDataset(backend, decode=3)


def test_skips_beside_columns_of_any_type() -> None:
    def odd(value: int) -> int:
        if value % 2 == 0:
            raise ValueError("even")
        return value

    columns = {
        "x": range(6),
        "view": pa.array([f"text {i}" for i in range(6)], pa.string_view()),
        "runs": pa.array([1, 1, 1, 2, 2, 2], pa.run_end_encoded(pa.int32(), pa.int64())),
    }
    rows = rows_of(columns, decode={"x": odd}, on_error="skip", output_format="dict")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = rows.batch(range(6))
    assert batch == {"x": [1, 3, 5], "view": ["text 1", "text 3", "text 5"], "runs": [1, 2, 2]}
    assert rows.skipped == 3


@pytest.mark.parametrize(
    ("decode", "dtype"),
    [(int, torch.int64), (float, torch.float64), (bool, torch.bool), (np.float32, torch.float32)],
)
def test_decoded_numbers_are_tensors(decode: Any, dtype: torch.dtype) -> None:
    rows = rows_of({"x": ["1", "2"]}, decode={"x": decode})
    values = next(iter(DataLoader(rows, batch_size=2)))["x"]
    assert values.dtype == dtype
    assert values.tolist() == [decode("1"), decode("2")]
    assert isinstance(rows.with_format("numpy").batch([0, 1])["x"], np.ndarray)
