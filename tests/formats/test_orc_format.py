"""ORC files: stripes, their statistics, and the tail that pyarrow does not show."""

from __future__ import annotations

import datetime
import math
import zlib
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import orc

from headrace.errors import ReadError
from headrace.formats.orc import OrcFormat
from headrace.formats.orc_footer import MALFORMED, read_stripe_statistics, read_tail
from headrace.formats.orc_wire import decompress
from headrace.model import DataFileInfo, FileSplit, RowRange
from headrace.storage import LocalStore
from headrace.testing import FormatContract, assert_same_rows

STORE = LocalStore()
COMPRESSIONS = ["uncompressed", "zlib", "snappy", "lz4", "zstd"]


class TestOrcContract(FormatContract):
    prunes = True

    def format(self) -> OrcFormat:
        return OrcFormat()

    def write(self, path: Path, table: pa.Table) -> None:
        write_stripes(path, table, self.rows_per_group)


def write_stripes(path: Path, table: pa.Table, rows: int) -> None:
    orc.write_table(table, str(path), stripe_size=1, batch_size=rows)


def read_back(path: Path, schema: pa.Schema, rows: RowRange | None = None) -> pa.Table:
    chunk = FileSplit(DataFileInfo(str(path)), rows)
    tables = list(OrcFormat().read(STORE, chunk, schema, 1 << 20))
    return pa.concat_tables(tables)


def noise(rows: int) -> pa.Table:
    random = np.random.default_rng(7)
    words = [f"{word:x}" * (1 + word % 5) for word in random.integers(0, 1 << 40, rows)]
    return pa.table({"id": range(rows), "x": random.random(rows), "word": words})


def kept_rows(path: Path, keep: ds.Expression) -> list[int]:
    groups = OrcFormat().inspect(STORE, DataFileInfo(str(path)), keep).row_groups
    assert groups is not None
    return groups.start.tolist()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("stripe_size", [64 << 10, 256 << 10, 64 << 20])
def test_the_tail_agrees_with_pyarrow(tmp_path: Path, compression: str, stripe_size: int) -> None:
    path = tmp_path / "a.orc"
    orc.write_table(noise(30_000), str(path), stripe_size=stripe_size, compression=compression)
    known = orc.ORCFile(path)
    tail = read_tail(pa.OSFile(str(path)))
    expected = [known.read_stripe(index).num_rows for index in range(known.nstripes)]
    assert [stripe.rows for stripe in tail.stripes] == expected
    assert tail.rows == known.nrows
    assert list(tail.column_ids) == known.schema.names
    assert len(tail.metadata) == known.stripe_statistics_length
    assert tail.stripes[-1].stop == len(b"ORC") + known.content_length
    assert len(read_stripe_statistics(tail)) == known.nstripes


def test_the_test_data_has_several_stripes_in_every_compression(tmp_path: Path) -> None:
    for compression in COMPRESSIONS:
        path = tmp_path / f"{compression}.orc"
        orc.write_table(noise(30_000), str(path), stripe_size=64 << 10, compression=compression)
        assert orc.ORCFile(path).nstripes > 1


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_ranges_over_compressed_stripes(tmp_path: Path, compression: str) -> None:
    path, table = tmp_path / "a.orc", noise(30_000)
    orc.write_table(table, str(path), stripe_size=64 << 10, compression=compression)
    got = read_back(path, table.schema, RowRange(9_999, 12_345))
    assert got.combine_chunks().equals(table.slice(9_999, 12_345).combine_chunks())


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_tail_longer_than_the_first_read(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "wide.orc"
    names = [np.random.default_rng(i).bytes(40).hex() for i in range(500)]
    table = pa.table({name: [1, 2] for name in names})
    orc.write_table(table, str(path), compression=compression)
    tail = read_tail(pa.OSFile(str(path)))
    assert list(tail.column_ids) == names
    assert tail.rows == 2
    assert orc.ORCFile(path).file_footer_length > 16 << 10


def test_nested_and_other_types_come_as_pyarrow_reads_them(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.orc", range(100)
    table = pa.table(
        {
            "point": pa.array([{"x": i, "y": [i] * (i % 4)} for i in rows]),
            "pairs": pa.array([[(f"k{i}", i)] for i in rows], pa.map_(pa.string(), pa.int32())),
            "price": pa.array([Decimal(i) / 4 for i in rows], pa.decimal128(12, 2)),
            "at": pa.array([i * 10**9 + 5 for i in rows], pa.timestamp("ns")),
            "day": pa.array(list(rows), pa.date32()),
            "raw": pa.array([bytes([i]) for i in rows]),
            "small": pa.array(list(rows), pa.int8()),
        }
    )
    write_stripes(path, table, 16)
    got = read_back(path, table.schema, RowRange(10, 50))
    assert got.combine_chunks().equals(orc.read_table(str(path)).slice(10, 50).combine_chunks())
    assert got.num_rows == 50


@pytest.mark.parametrize("names", [["a", "a.b"], ["a.b", "a"]])
def test_a_name_with_a_dot_is_not_a_field_of_a_struct(tmp_path: Path, names: list[str]) -> None:
    path = tmp_path / "a.orc"
    columns = {"a": pa.array([{"b": 1, "c": 2}] * 3), "a.b": pa.array([7, 8, 9])}
    table = pa.table({name: columns[name] for name in names})
    orc.write_table(table, str(path))
    for name in names:
        assert_same_rows(read_back(path, table.select([name]).schema), table.select([name]))


def test_sizes_are_those_of_the_decoded_rows(tmp_path: Path) -> None:
    path, table = tmp_path / "a.orc", noise(30_000)
    orc.write_table(table, str(path), stripe_size=64 << 10, compression="zstd")
    groups = OrcFormat().inspect(STORE, DataFileInfo(str(path))).row_groups
    assert groups is not None
    assert groups.size_bytes.sum() == pytest.approx(table.nbytes, rel=0.1)


PYARROW = int(pa.__version__.partition(".")[0])
DAY = datetime.date(2020, 1, 1)
STATED = pa.table(
    {
        "int": pa.array(range(40), pa.int32()),
        "float": pa.array([i / 2 for i in range(40)], pa.float32()),
        "text": pa.array([f"{i:02}ß" for i in range(40)]),
        "day": pa.array([DAY + datetime.timedelta(days=i) for i in range(40)]),
        "flag": pa.array([i >= 30 for i in range(40)]),
        "half": pa.array([None if 10 <= i < 25 else i for i in range(40)]),
    }
)


@pytest.mark.parametrize(
    ("keep", "starts"),
    [
        (ds.field("int") == 15, [10]),
        # pyarrow 16 concludes nothing from lists, and all stripes are left
        *([(ds.field("int").isin([3, 39]), [0, 30])] if PYARROW >= 18 else []),
        (ds.field("float") > 14.5, [30]),
        (ds.field("text") < "10", [0]),
        (ds.field("day") >= DAY + datetime.timedelta(days=25), [20, 30]),
        (ds.field("flag"), [30]),
        (~ds.field("flag"), [0, 10, 20]),
        (ds.field("half").is_null(), [10, 20]),
        (ds.field("half").is_valid(), [0, 20, 30]),
        (ds.field("half") >= 0, [0, 20, 30]),
        ((ds.field("int") < 10) | (ds.field("text") == "22ß"), [0, 20]),
        (ds.field("int") > 100, []),
    ],
)
def test_stripes_are_ruled_out_by_statistics(
    tmp_path: Path, keep: ds.Expression, starts: list[int]
) -> None:
    path = tmp_path / "a.orc"
    write_stripes(path, STATED, 10)
    assert kept_rows(path, keep) == starts


def test_a_nan_among_numbers_does_not_lose_its_stripe(tmp_path: Path) -> None:
    path = tmp_path / "a.orc"
    table = pa.table({"x": [1.0, math.nan, 2.0, 3.0, math.nan, 1.0, 1.0, 2.0, 3.0]})
    write_stripes(path, table, 3)
    assert kept_rows(path, ~(ds.field("x") <= 10.0)) == [0, 3]


numbers = st.one_of(st.none(), st.floats(-3, 3, width=32), st.just(math.nan))


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    rows=st.lists(st.tuples(numbers, st.none() | st.integers(-3, 3)), min_size=1, max_size=30),
    bound=st.integers(-4, 4),
)
def test_ruling_out_never_loses_a_matching_row(
    tmp_path: Path, rows: list[tuple[float | None, int | None]], bound: int
) -> None:
    path = tmp_path / "a.orc"
    xs, ns = zip(*rows, strict=True)
    columns = {"x": pa.array(xs, pa.float64()), "n": pa.array(ns, pa.int64())}
    table = pa.table({"row": range(len(rows)), **columns})
    write_stripes(path, table, 3)
    x, n = ds.field("x"), ds.field("n")
    for keep in (x > bound, ~(x > bound), n == bound, n != bound, ~(n < bound) | x.is_null()):
        groups = OrcFormat().inspect(STORE, DataFileInfo(str(path)), keep).row_groups
        assert groups is not None
        left = {r for a, c in zip(groups.start, groups.rows, strict=True) for r in range(a, a + c)}
        assert set(table.filter(keep)["row"].to_pylist()) <= left


def test_text_that_is_not_utf8_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "a.orc"
    text = pa.array([b"\xff\xfe", b"ok"]).view(pa.string())
    orc.write_table(pa.table({"id": [1, 2], "text": text}), str(path))
    assert kept_rows(path, ds.field("id") == 2) == [0]
    assert kept_rows(path, ds.field("id") == 3) == []


def test_few_rows_do_not_hold_their_stripe_in_memory(tmp_path: Path) -> None:
    path, table = tmp_path / "a.orc", noise(30_000)
    orc.write_table(table, str(path))
    got = read_back(path, table.schema, RowRange(20_000, 30))
    assert_same_rows(got, table.slice(20_000, 30))
    assert got.get_total_buffer_size() < 5_000


def test_rows_beyond_the_file_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.orc"
    write_stripes(path, STATED, 10)
    with pytest.raises(ReadError, match=r"a\.orc, rows 30-41: the file has 40 rows only"):
        read_back(path, STATED.schema, RowRange(30, 11))


def test_another_format_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.orc"
    path.write_bytes(b"id,x\n1,2\n" * 10)
    with pytest.raises(ReadError, match=r"a\.orc: it does not end like an ORC file"):
        OrcFormat().inspect(STORE, DataFileInfo(str(path)))


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(from_end=st.integers(1, 600), byte=st.integers(0, 255))
@pytest.mark.parametrize("compression", ["uncompressed", "zlib"])
def test_a_broken_tail_is_parsed_or_refused(
    tmp_path: Path, compression: str, from_end: int, byte: int
) -> None:
    path = tmp_path / "whole.orc"
    if not path.exists():
        orc.write_table(STATED, str(path), compression=compression)
    broken = bytearray(path.read_bytes())
    broken[-min(from_end, len(broken))] = byte
    with suppress(*MALFORMED):
        tail = read_tail(pa.BufferReader(bytes(broken)))
        assert tail.rows >= 0
        read_stripe_statistics(tail)


def deflated(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


COMPRESSORS = {
    "zlib": deflated,
    **{
        name: partial(pa.Codec(name).compress, asbytes=True)
        for name in ("snappy", "lz4_raw", "zstd")
    },
}


@pytest.mark.parametrize("compression", COMPRESSORS)
@given(
    parts=st.lists(
        st.tuples(st.binary(min_size=1, max_size=300), st.integers(1, 300), st.booleans()),
        max_size=4,
    )
)
def test_chunks_of_every_compression_are_read(
    compression: str, parts: list[tuple[bytes, int, bool]]
) -> None:
    """Writers often store short footers as they are, so that files alone do not show this."""
    stored, expected = b"", b""
    for pattern, times, compress in parts:
        data = pattern * times
        chunk = COMPRESSORS[compression](data) if compress else data
        stored += (len(chunk) << 1 | (not compress)).to_bytes(3, "little") + chunk
        expected += data
    assert decompress(stored, compression) == expected
