"""From a location to files, one schema and a reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from headrace import (
    NothingFoundError,
    OptionError,
    ReadError,
    SchemaError,
    SkippedDataWarning,
    StructuredDataset,
)
from headrace.sources.files.discovery import discover


def write(path: Path, rows: int = 10, start: int = 0, group: int = 5, **more: pa.Array) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = np.arange(start, start + rows)
    pq.write_table(pa.table({"id": ids, "x": ids / 2, **more}), path, row_group_size=group)
    return path


def read(dataset: StructuredDataset) -> dict[str, list[object]]:
    out: dict[str, list[object]] = {}
    for batch in dataset:
        for name, values in batch.items():
            out.setdefault(name, []).extend(values)
    return out


def rows(path: object, **options: object) -> dict[str, list[object]]:
    return read(StructuredDataset(path, output_format="dict", batch_size=7, **options))


# --- which files


def test_a_directory_is_read_in_the_order_of_paths(tmp_path: Path) -> None:
    write(tmp_path / "b" / "1.parquet", start=20)
    write(tmp_path / "a.parquet", start=0)
    write(tmp_path / "b" / "0.parquet", start=10)
    assert rows(tmp_path)["id"] == list(range(30))


def test_other_files_in_a_directory_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    (tmp_path / "README.md").write_text("not data")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / ".part.crc").write_text("junk")
    assert rows(tmp_path)["id"] == list(range(10))


def test_files_without_extension_are_taken_if_there_is_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "part-00000")
    write(tmp_path / "part-00001", start=10)
    assert rows(tmp_path)["id"] == list(range(20))


def test_a_file_named_in_full_may_have_any_extension(tmp_path: Path) -> None:
    assert rows(write(tmp_path / "x.data"))["id"] == list(range(10))


def test_the_extension_tells_the_format(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n2\n")
    dataset = StructuredDataset(tmp_path, None, output_format="dict")
    assert dataset.format == "csv"
    assert read(dataset) == {"id": [1, 2]}


def test_two_formats_in_one_place_want_a_word(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("id\n1\n")
    with pytest.raises(OptionError, match="csv and parquet"):
        StructuredDataset(tmp_path, None)
    assert rows(tmp_path, format="csv")["id"] == [1]


def test_a_directory_without_a_file_of_the_format(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("id\n1\n")
    with pytest.raises(NothingFoundError, match=r"no parquet file .*\.parquet"):
        StructuredDataset(tmp_path, "parquet")


# --- columns and schema


def test_columns_come_in_the_order_asked_for(tmp_path: Path) -> None:
    dataset = StructuredDataset(write(tmp_path / "a.parquet"), columns=["x", "id"])
    assert dataset.schema.names == ["x", "id"]
    assert list(next(iter(dataset))) == ["x", "id"]


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        (["idd"], SchemaError, "did you mean 'id'"),
        ([], OptionError, "empty"),
        (["id", "id"], OptionError, "twice"),
        ("id", OptionError, "list of names"),
        ([1], OptionError, "list of names"),
    ],
)
def test_columns_that_cannot_be(tmp_path, columns, error, message) -> None:
    with pytest.raises(error, match=message):
        StructuredDataset(write(tmp_path / "a.parquet"), columns=columns)


def test_a_column_that_one_file_lacks_is_null_there(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 3, y=pa.array([1, 2, 3]))
    write(tmp_path / "b.parquet", 2)
    assert rows(tmp_path)["y"] == [1, 2, 3, None, None]


def test_types_are_widened_to_hold_all_values(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": pa.array([1], pa.int8())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"v": pa.array([2**40])}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"v": pa.array([None], pa.null())}), tmp_path / "c.parquet")
    dataset = StructuredDataset(tmp_path, output_format="dict")
    assert dataset.schema.field("v").type == pa.int64()
    assert read(dataset)["v"] == [1, 2**40, None]


def test_a_value_that_a_wider_type_would_round_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": [2**53 + 1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"v": [0.5]}), tmp_path / "b.parquet")
    with pytest.raises(ReadError, match=r"a\.parquet.*column 'v' is int64"):
        rows(tmp_path)


def test_types_that_do_not_fit_name_both_files(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"v": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(SchemaError, match=r"int64 in .*a\.parquet and string in .*b\.parquet"):
        StructuredDataset(tmp_path)


def test_dictionaries_beside_plain_values(tmp_path: Path) -> None:
    words = pa.array(["a", "b"])
    pq.write_table(pa.table({"v": words.dictionary_encode()}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"v": words}), tmp_path / "b.parquet")
    assert rows(tmp_path)["v"] == ["a", "b", "a", "b"]


class Degrees(pa.ExtensionType):
    """A type made in Python, as a user may: it has no hash."""

    def __init__(self, storage: pa.DataType | None = None) -> None:
        super().__init__(storage or pa.int64(), "headrace.tests.degrees")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Degrees:
        return cls(storage)


@pytest.fixture
def degrees() -> Iterator[Degrees]:
    type_ = Degrees()
    pa.register_extension_type(type_)
    yield type_
    pa.unregister_extension_type(type_.extension_name)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("split_rows", [None, 30])
def test_types_made_in_python(
    tmp_path: Path, degrees: Degrees, kind: str, split_rows: int | None
) -> None:
    for number in range(3):
        values = np.arange(number * 100, (number + 1) * 100)
        table = pa.table({"id": pa.ExtensionArray.from_storage(degrees, pa.array(values))})
        if kind == "parquet":
            pq.write_table(table, tmp_path / f"{number}.parquet")
        else:
            with pa.ipc.new_file(tmp_path / f"{number}.arrow", table.schema) as writer:
                writer.write_table(table, max_chunksize=40)
    options = {"batch_size": 30} | ({} if split_rows is None else {"split_rows": split_rows})
    batches = StructuredDataset(tmp_path, kind, **options)
    assert [one for batch in batches for one in batch["id"].tolist()] == list(range(300))
    batches = StructuredDataset(tmp_path, kind, output_format="arrow", **options)
    assert [one for b in batches for one in b["id"].storage.to_pylist()] == list(range(300))
    loader, dataset = StructuredDataset.create_dataloader(tmp_path, kind, num_workers=1, **options)
    assert sorted(one for batch in loader for one in batch["id"].tolist()) == list(range(300))
    assert [row["id"] for row in dataset.rows.__getitems__([250, 3])] == [250, 3]


def test_a_given_schema_wins(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 3)
    dataset = StructuredDataset(tmp_path, schema=pa.schema([("id", pa.float32())]))
    assert dataset.schema.names == ["id"]
    assert next(iter(dataset))["id"].tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(SchemaError, match="no file has a column 'idx'"):
        StructuredDataset(tmp_path, schema=pa.schema([("idx", pa.int64())]))
    with pytest.raises(OptionError, match=r"pyarrow\.Schema"):
        StructuredDataset(tmp_path, schema={"id": "int64"})  # type: ignore[arg-type]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["v", "v"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match="two columns named 'v'"):
        StructuredDataset(tmp_path)


def test_column_names_with_dots_beside_structs(tmp_path: Path) -> None:
    table = pa.table({"a.b": [1], "a": [{"b": 2, "c": 3}], "z": [4]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert rows(tmp_path, columns=["a.b", "z"]) == {"a.b": [1], "z": [4]}
    assert rows(tmp_path, columns=["a"]) == {"a": [{"b": 2, "c": 3}]}


# --- filters


def test_a_filter_may_use_columns_that_are_not_wanted(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 100)
    kept = rows(tmp_path, columns=["x"], filters=pc.field("id") >= 95)
    assert kept == {"x": [47.5, 48.0, 48.5, 49.0, 49.5]}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([("id", ">", 7)], [8, 9]),
        ([("id", ">", 3), ("id", "<", 6)], [4, 5]),
        ([[("id", "==", 1)], [("id", "==", 8)]], [1, 8]),
        ([("id", "in", [2, 3])], [2, 3]),
        ([], list(range(10))),
        (pc.field("x") == 1.5, [3]),
        (~(pc.field("id") > 1), [0, 1]),
    ],
)
def test_forms_of_filters(tmp_path, filters, expected) -> None:
    write(tmp_path / "a.parquet")
    assert rows(tmp_path, filters=filters)["id"] == expected


def test_row_groups_that_cannot_match_are_not_planned(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 100, group=10)
    found = discover(tmp_path, "parquet", filters=pc.field("id") == 42)
    assert found.files.groups.start.tolist() == [40]
    assert not found.counted


def test_a_filter_that_leaves_nothing_gives_no_batches(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    assert rows(tmp_path, filters=pc.field("id") < 0) == {}
    assert rows(tmp_path, filters=pc.field("x") == 0.25) == {}


def test_quotes_tabs_and_backslashes_in_a_filter(tmp_path: Path) -> None:
    words = ["it's", 'say "hi"', "a\tb", "c\\d", "ünï", ""]
    pq.write_table(pa.table({"w": words}), tmp_path / "a.parquet")
    for word in words:
        assert rows(tmp_path, filters=pc.field("w") == word) == {"w": [word]}
        assert rows(tmp_path, filters=[("w", "=", word)]) == {"w": [word]}


@pytest.mark.parametrize(
    ("filters", "error", "message"),
    [
        (pc.field("nope") > 1, SchemaError, "nope.*id"),
        (pc.field("id") == "text", SchemaError, "cannot be applied"),
        ("id > 3", OptionError, "expression or a list"),
        ([("id", "~~", 3)], OptionError, "cannot be understood"),
        (5, OptionError, "expression or a list"),
    ],
)
def test_filters_that_cannot_be(tmp_path, filters, error, message) -> None:
    write(tmp_path / "a.parquet")
    with pytest.raises(error, match=message):
        StructuredDataset(tmp_path, filters=filters)


def test_a_filter_on_a_column_that_only_some_files_have(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 3)
    write(tmp_path / "b.parquet", 3, start=3, y=pa.array([7, 8, 9]))
    assert rows(tmp_path, filters=pc.field("y") > 7)["id"] == [4, 5]
    assert rows(tmp_path, filters=pc.field("y").is_null())["id"] == [0, 1, 2]


# --- columns in paths


@pytest.fixture
def hive(tmp_path: Path) -> Path:
    for year in (2023, 2024):
        for place, city in enumerate(["Köln", "a b%20c"]):
            folder = tmp_path / f"year={year}" / f"city={city.replace('%', '%25')}"
            write(folder / "0.parquet", 2, start=(year - 2023) * 10 + place * 2)
    return tmp_path


def test_path_columns_are_typed_and_come_last(hive: Path) -> None:
    dataset = StructuredDataset(hive, partitioning="hive", output_format="dict")
    assert dataset.schema.names == ["id", "x", "year", "city"]
    assert dataset.schema.field("year").type == pa.int64()
    out = read(dataset)
    assert sorted(set(out["city"])) == ["Köln", "a b%20c"]
    assert dict(zip(out["id"], out["year"], strict=True))[12] == 2024


def test_only_path_columns_can_be_asked_for(hive: Path) -> None:
    assert (
        sorted(rows(hive, partitioning="hive", columns=["year"])["year"]) == [2023] * 4 + [2024] * 4
    )


def test_directories_that_cannot_match_are_not_opened(hive: Path) -> None:
    for broken in (hive / "year=2023").rglob("*.parquet"):
        broken.write_bytes(b"broken")
    dataset = StructuredDataset(
        hive, partitioning="hive", filters=pc.field("year") == 2024, output_format="dict"
    )
    assert dataset.num_rows == 4, "a filter over paths alone leaves the count known"
    assert sorted(read(dataset)["id"]) == [10, 11, 12, 13]


def test_a_filter_over_paths_and_rows(hive: Path) -> None:
    keep = (pc.field("year") == 2024) & (pc.field("id") > 11) & (pc.field("city") != "nowhere")
    assert sorted(rows(hive, partitioning="hive", filters=keep, columns=["x"])["x"]) == [6.0, 6.5]


@pytest.mark.parametrize(
    "filters",
    [
        [[("year", "=", 2024), ("x", ">=", 0)], [("year", ">", 2024)]],
        ~(pc.field("year") == 2023) & (pc.abs(pc.field("x")) >= 0),
        (pc.field("year") == 2024) & ~((pc.field("year") == 2024) & (pc.field("x") < 0)),
    ],
)
def test_parts_of_filters_over_paths_exclude_files(hive: Path, filters: Any) -> None:
    for broken in (hive / "year=2023").rglob("*.parquet"):
        broken.write_bytes(b"not read")
    assert set(rows(hive, partitioning="hive", filters=filters)["year"]) == {2024}


@pytest.mark.parametrize(
    "filters",
    [
        ~((pc.field("year") == 2024) & (pc.field("x") < 0)),
        (pc.field("year") == 2024) | (pc.field("x") >= 0),
    ],
)
def test_parts_of_filters_that_exclude_no_file(hive: Path, filters: Any) -> None:
    assert set(rows(hive, partitioning="hive", filters=filters)["year"]) == {2023, 2024}


def test_a_missing_hive_value_is_null(tmp_path: Path) -> None:
    write(tmp_path / "k=1" / "a.parquet", 1)
    write(tmp_path / "k=__HIVE_DEFAULT_PARTITION__" / "a.parquet", 1)
    assert rows(tmp_path, partitioning="hive")["k"] == [1, None]


def test_the_key_at_the_end_of_the_root_counts(hive: Path) -> None:
    assert set(rows(hive / "year=2024", partitioning="hive")["year"]) == {2024}


def test_a_partitioning_of_pyarrow(tmp_path: Path) -> None:
    write(tmp_path / "7" / "a.parquet", 2)
    scheme = ds.DirectoryPartitioning(pa.schema([("day", pa.int16())]))
    out = StructuredDataset(tmp_path, partitioning=scheme)
    assert out.schema.field("day").type == pa.int16()
    assert next(iter(out))["day"].tolist() == [7, 7]
    with pytest.raises(OptionError, match="partitioning"):
        StructuredDataset(tmp_path, partitioning="directory")


# --- broken files


def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    broken = write(tmp_path / "b.parquet")
    broken.write_bytes(broken.read_bytes()[:-5])
    with pytest.raises(ReadError, match=r"b\.parquet"):
        StructuredDataset(tmp_path)


def test_a_broken_file_can_be_left_out(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    with pytest.warns(SkippedDataWarning, match=r"b\.parquet"):
        dataset = StructuredDataset(tmp_path, on_error="skip", output_format="dict")
    assert read(dataset)["id"] == list(range(10))
    assert dataset.num_rows is None
    with pytest.raises(TypeError, match="on_error"):
        len(dataset)


# --- what is known


def test_counts(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 10)
    write(tmp_path / "b.parquet", 11)
    dataset = StructuredDataset(tmp_path, batch_size=5)
    assert (dataset.num_rows, len(dataset)) == (21, 5)
    assert len(StructuredDataset(tmp_path, batch_size=5, drop_last=True)) == 4
    assert repr(dataset) == (
        f"<StructuredDataset: 2 parquet files of {tmp_path}, 21 rows; 5 batches of 5; 1 lane; "
        "in order>"
    )
    filtered = StructuredDataset(tmp_path, filters=pc.field("id") > 3)
    assert filtered.num_rows is None
    with pytest.raises(TypeError, match="not known"):
        len(filtered)
