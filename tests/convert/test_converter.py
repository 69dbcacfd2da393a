"""The converter as a whole: options, Arrow and Python output, and tables of unusual shapes."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from headrace.convert import Block, Converter, concat
from headrace.errors import OptionError, SchemaError

FORMATS = ["torch", "numpy", "arrow", "dict"]
TABLE = pa.table(
    {
        "i": [1, None, 2**53 + 1, 4, 5],
        "s": ["a", None, "c", "d", "e"],
        "l": [[1], None, [], [None], [5]],
    }
)


def _block(table: pa.Table, fmt: str, **options: Any) -> Block:
    return Converter(table.schema, fmt, **options).convert(table)


def test_arrow_batches_are_record_batches_of_the_schema() -> None:
    schema = TABLE.schema.with_metadata({"k": "v"})
    table = pa.concat_tables([TABLE, TABLE]).slice(1, 8).replace_schema_metadata(None)
    batches = list(Converter(schema, "arrow").convert(table).batches(3))
    assert all(isinstance(batch, pa.RecordBatch) for batch in batches)
    assert [batch.num_rows for batch in batches] == [3, 3, 2]
    assert all(batch.schema.equals(schema, check_metadata=True) for batch in batches)
    assert pa.Table.from_batches(batches).to_pylist() == table.to_pylist()


def test_dict_batches_are_python_values() -> None:
    batches = list(_block(TABLE, "dict").batches(2))
    assert batches[0] == {"i": [1, None], "s": ["a", None], "l": [[1], None]}
    assert batches[2] == {"i": [5], "s": ["e"], "l": [[5]]}


@pytest.mark.parametrize("fmt", ["arrow", "dict"])
def test_arrow_blocks_are_cut_and_joined(fmt: str) -> None:
    block = _block(TABLE, fmt)
    mixed = concat([block.slice(4, 1), block.slice(0, 1), block.slice(2, 2)])
    (batch,) = mixed.batches(9)
    values = batch if fmt == "dict" else batch.to_pydict()
    assert values["i"] == [5, 1, 2**53 + 1, 4]
    assert mixed.num_rows == 4
    assert mixed.pin() is mixed


@pytest.mark.parametrize("fmt", ["arrow", "dict"])
@pytest.mark.parametrize("options", [{"nulls": "mask"}, {"nulls": {}}, {"ragged": "pad"}])
def test_options_without_effect_are_refused(fmt: str, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="nulls and ragged have no effect"):
        Converter(TABLE.schema, fmt, **options)


@pytest.mark.parametrize("fmt", FORMATS)
def test_no_rows(fmt: str) -> None:
    options = {"nulls": "mask"} if fmt in ("torch", "numpy") else {}
    for table in (TABLE.schema.empty_table(), TABLE.slice(0, 0)):
        block = _block(table, fmt, **options)
        assert block.num_rows == 0
        assert list(block.batches(4)) == []
        assert list(concat([block, block]).batches(4)) == []


@pytest.mark.parametrize("fmt", FORMATS)
def test_no_columns(fmt: str) -> None:
    block = _block(TABLE.select([]), fmt)
    assert block.num_rows == 5
    batches = list(block.batches(2))
    assert len(batches) == 3
    if fmt == "arrow":
        assert [batch.num_rows for batch in batches] == [2, 2, 1]
    else:
        assert batches == [{}, {}, {}]
    assert block.slice(0, 1).num_rows == 1


@pytest.mark.parametrize("fmt", ["torch", "numpy"])
def test_slices_end_where_the_block_ends(fmt: str) -> None:
    block = _block(pa.table({"a": range(5), "s": [{"x": 1}] * 5}), fmt)
    tail = block.slice(3, 10)
    assert tail.num_rows == 2
    assert [len(batch["a"]) for batch in tail.batches(4)] == [2]


def test_names_of_any_kind_and_many_columns() -> None:
    names = ["a.b", "", "naïve 😀", *map(str, range(600))]
    table = pa.table({name: [i] for i, name in enumerate(names)})
    (batch,) = _block(table, "torch").batches(1)
    assert list(batch) == names
    assert [int(value) for value in batch.values()] == list(range(len(names)))


@pytest.mark.parametrize("fmt", ["torch", "numpy", "dict"])
def test_a_name_that_stands_twice(fmt: str) -> None:
    schema = pa.schema([("a", pa.int64()), ("a", pa.int64())])
    with pytest.raises(SchemaError, match="name"):
        Converter(schema, fmt)
    Converter(schema, "arrow")


def test_a_table_of_another_schema() -> None:
    converter = Converter(pa.schema({"a": pa.int64()}))
    for other in ({"a": [1.5]}, {"b": [1]}, {"a": [1], "b": [1]}):
        with pytest.raises(SchemaError, match="does not have the schema of the data set"):
            converter.convert(pa.table(other))


def test_many_small_chunks() -> None:
    pieces = [pa.table({"a": [i], "s": [str(i)]}) for i in range(300)]
    batches = list(_block(pa.concat_tables(pieces), "torch").batches(7))
    assert [v for b in batches for v in b["a"].tolist()] == list(range(300))
    assert [v for b in batches for v in b["s"]] == list(map(str, range(300)))


@pytest.mark.parametrize("fmt", FORMATS)
def test_converters_pickle_and_copy(fmt: str) -> None:
    options = {"nulls": {"i": -1, "s": None, "l": 0}} if fmt in ("torch", "numpy") else {}
    original = Converter(TABLE.schema, fmt, **options)
    expected = str(list(original.convert(TABLE).batches(2)))
    for twin in (pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
        assert str(list(twin.convert(TABLE).batches(2))) == expected


def test_refusals_survive_pickling() -> None:
    twin = pickle.loads(pickle.dumps(Converter(TABLE.schema)))
    with pytest.raises(ValueError, match=r"'i'.*1 null values"):
        twin.convert(TABLE)


def test_threads_share_a_converter() -> None:
    table = pa.table({"a": range(1000), "s": [str(i) for i in range(1000)]})
    converter = Converter(table.schema)

    def values(_: int) -> list[int]:
        return [v for b in converter.convert(table).batches(64) for v in b["a"].tolist()]

    with ThreadPoolExecutor(4) as pool:
        assert all(got == list(range(1000)) for got in pool.map(values, range(16)))


def test_nbytes_follow_the_rows() -> None:
    block = _block(pa.table({"a": range(10), "s": [{"x": 1.5}] * 10}), "torch")
    assert block.nbytes == 160
    assert block.slice(0, 5).nbytes == 80
    assert _block(pa.table({"s": ["abcd"] * 10}), "torch").nbytes >= 40
