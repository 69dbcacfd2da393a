"""CSV: the contract, ranges, options, and errors that name the line."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import OptionError, ReadError, SchemaError
from headrace.model import ByteRange, DataFileInfo, FileSplit
from headrace.sources.files._csv import CsvFormat
from headrace.sources.files.discovery import discover
from headrace.sources.files.protocol import FileFacts, Format
from headrace.storage import store_for
from headrace.testing import FormatContract

BLOCK_BYTES = 1 << 20


class TestCsv(FormatContract):
    typed = False
    counted = False
    truncation_shows = False

    def format(self) -> Format:
        return CsvFormat({"convert_options": pacsv.ConvertOptions(strings_can_be_null=True)})

    def write(self, path: Path, table: pa.Table) -> None:
        pacsv.write_csv(table, path)


class TestCompressedCsv(TestCsv):
    truncation_shows = True

    @pytest.fixture(params=[".gz", ".bz2", ".zst", ".lz4"])
    def path(self, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
        return tmp_path / f"päth with blank.csv{request.param}"

    def write(self, path: Path, table: pa.Table) -> None:
        with pa.output_stream(path, compression="detect" if path.suffix != ".lz4" else "lz4") as f:
            pacsv.write_csv(table, f)

    @pytest.mark.parametrize("kept", [0.01, 0.3, 0.7, 0.98, "all but a byte"])
    def test_a_truncated_file_is_an_error_that_names_it(
        self, path: Path, kept: float | str
    ) -> None:
        """Nothing at all is an empty file, and so is not among these."""
        super().test_a_truncated_file_is_an_error_that_names_it(path, kept)


class TestQuotedNewlines(TestCsv):
    """Read from the top by Arrow's streaming reader."""

    def format(self) -> Format:
        return CsvFormat(
            {
                "parse_options": pacsv.ParseOptions(newlines_in_values=True),
                "convert_options": pacsv.ConvertOptions(strings_can_be_null=True),
            }
        )

    def test_small_blocks_are_several_tables(self, path: Path) -> None:
        table = pa.table({"id": range(300_000), "text": ["two\nlines"] * 300_000})
        self.write(path, table)
        store, file = self.discover(path)
        assert not self.inspect(store, file).splittable
        tables = list(self.format().read(store, FileSplit(file), table.schema, 512))
        assert len(tables) > 1
        assert pa.concat_tables(tables).equals(table)


def found(
    path: Path, text: bytes, options: dict[str, Any] | None = None, schema: pa.Schema | None = None
) -> tuple[CsvFormat, DataFileInfo, FileFacts]:
    path.write_bytes(text)
    csv = CsvFormat(options, schema=schema)
    file = DataFileInfo(str(path), file_size=len(text))
    facts = csv.inspect(store_for(str(path)), file)
    return csv, facts.added_to(file), facts


def rows_of(
    csv: CsvFormat, chunk: FileSplit, schema: pa.Schema, block_bytes: int = BLOCK_BYTES
) -> list[dict[str, Any]]:
    tables = csv.read(store_for(chunk.file.path), chunk, schema, block_bytes)
    return [row for table in tables for row in table.to_pylist()]


def read(
    path: Path, text: bytes, options: dict[str, Any] | None = None, schema: pa.Schema | None = None
) -> list[dict[str, Any]]:
    csv, file, facts = found(path, text, options, schema)
    return rows_of(csv, FileSplit(file), facts.schema)


@settings(
    deadline=None,
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    values=st.lists(st.tuples(st.integers(-9, 2**60), st.text("aé数,\" '", max_size=5))),
    blank_lines=st.sets(st.integers(0, 10)),
    line_end=st.sampled_from(["\n", "\r\n"]),
    last_newline=st.booleans(),
    bom=st.booleans(),
    cuts=st.lists(st.integers(0, 200), max_size=5),
    block_bytes=st.integers(1, 100),
)
def test_any_cut_gives_the_same_rows(
    tmp_path: Path,
    values: Sequence[tuple[int, str]],
    blank_lines: set[int],
    line_end: str,
    last_newline: bool,
    bom: bool,
    cuts: list[int],
    block_bytes: int,
) -> None:
    quoted = ((number, text.replace('"', '""')) for number, text in values)
    lines = ["n,text", *(f'{number},"{text}"' for number, text in quoted)]
    for i in sorted(blank_lines):
        lines.insert(i, "")
    text = line_end.join(lines) + (line_end if last_newline else "")
    data = text.encode("utf-8-sig" if bom else "utf-8")
    types = pa.schema([("n", pa.int64()), ("text", pa.string())])
    csv, file, facts = found(tmp_path / "a.csv", data, schema=types)
    assert facts.splittable
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    got = []
    for start, stop in pairwise(bounds):
        chunk = FileSplit(file, byte_range=ByteRange(start, stop - start))
        got += rows_of(csv, chunk, types, block_bytes)
    assert got == [{"n": number, "text": text} for number, text in values]


def test_header_longer_than_the_first_range(tmp_path: Path) -> None:
    text = b"first_column,second_column\n1,2\n3,4\n"
    csv, file, facts = found(tmp_path / "a.csv", text)
    ranges = [ByteRange(0, 5), ByteRange(5, 20), ByteRange(25, 0), ByteRange(25, 100)]
    got = [rows_of(csv, FileSplit(file, byte_range=r), facts.schema) for r in ranges]
    assert [len(rows) for rows in got] == [0, 0, 0, 2]
    assert facts.body_offset == 27


def test_a_header_of_many_columns(tmp_path: Path) -> None:
    names = [f"a_rather_long_name_{i}" for i in range(2000)]
    text = ",".join(names) + "\n" + ",".join(map(str, range(2000))) + "\n"
    [row] = read(tmp_path / "a.csv", text.encode())
    assert row == {name: i for i, name in enumerate(names)}


def test_byte_order_mark_in_the_middle_is_data(tmp_path: Path) -> None:
    text = "a,b\nx,1\n\ufeffy,2\n".encode()
    csv, file, facts = found(tmp_path / "a.csv", text)
    rows = rows_of(csv, FileSplit(file), facts.schema, block_bytes=1)
    assert [row["a"] for row in rows] == ["x", "\ufeffy"]


def test_files_without_rows_do_not_spoil_types(tmp_path: Path) -> None:
    for text, names in ((b"", []), (b"\n\r\n", []), (b"a,b", ["a", "b"]), (b"a,b\n", ["a", "b"])):
        csv, file, facts = found(tmp_path / "a.csv", text)
        assert facts.schema == pa.schema([(name, pa.null()) for name in names])
        assert rows_of(csv, FileSplit(file), pa.schema([("a", pa.int64())])) == []


def test_given_types_win(tmp_path: Path) -> None:
    given_types = pa.schema([("a", pa.string()), ("elsewhere", pa.int8())])
    convert = pacsv.ConvertOptions(column_types={"a": pa.int8(), "b": pa.float32()})
    _, _, facts = found(
        tmp_path / "a.csv", b"a,b,c\n01,2,3\n", {"convert_options": convert}, given_types
    )
    expected = [("a", pa.string()), ("b", pa.float32()), ("c", pa.int64())]
    assert facts.schema == pa.schema(expected)
    assert convert.column_types == {"a": pa.int8(), "b": pa.float32()}


def test_tabs_quotes_and_null_markers(tmp_path: Path) -> None:
    assert read(tmp_path / "a.tsv", b'a\tb\n1\t"x\ty"\nNA\tNA\n') == [
        {"a": 1, "b": "x\ty"},
        {"a": None, "b": "NA"},
    ]
    semicolons = {"parse_options": pacsv.ParseOptions(delimiter=";")}
    assert read(tmp_path / "b.tsv", b"a;b\n9007199254740993;2\n", semicolons) == [
        {"a": 2**53 + 1, "b": 2}
    ]


@pytest.mark.parametrize(
    ("read_options", "text", "splittable"),
    [
        (pacsv.ReadOptions(column_names=["a", "b"]), b"1,x\n2,y\n", True),
        (pacsv.ReadOptions(skip_rows=1), b"# by hand\na,b\n1,x\n2,y\n", False),
        (pacsv.ReadOptions(skip_rows_after_names=1), b"a,b\nint,str\n1,x\n2,y\n", False),
        (pacsv.ReadOptions(encoding="utf-16"), "a,b\n1,x\n2,y\n".encode("utf-16"), False),
    ],
)
def test_read_options(
    tmp_path: Path, read_options: pacsv.ReadOptions, text: bytes, splittable: bool
) -> None:
    csv, file, facts = found(tmp_path / "a.csv", text, {"read_options": read_options})
    assert facts.splittable is splittable
    copy = pickle.loads(pickle.dumps(csv))
    rows = rows_of(copy, FileSplit(file), facts.schema)
    assert rows == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def test_numbered_columns_and_latin_text(tmp_path: Path) -> None:
    options = {"read_options": pacsv.ReadOptions(autogenerate_column_names=True, encoding="cp1252")}
    rows = read(tmp_path / "a.csv", "é,1\nü,2\n".encode("cp1252"), options)
    assert rows == [{"f0": "é", "f1": 1}, {"f0": "ü", "f1": 2}]


def test_convert_options_survive(tmp_path: Path) -> None:
    convert = pacsv.ConvertOptions(
        timestamp_parsers=["%d.%m.%Y"], null_values=["-"], include_columns=["when", "n"]
    )
    text = b"n,when,x\n1,24.12.2025,1\n-,31.01.2026,1\n"
    csv, file, facts = found(tmp_path / "a.csv", text, {"convert_options": convert})
    assert facts.schema == pa.schema([("when", pa.timestamp("s")), ("n", pa.int64())])
    assert [row["n"] for row in rows_of(csv, FileSplit(file), facts.schema)] == [1, None]


@pytest.mark.parametrize(
    "options", [{"delimiter": ";"}, {"read_options": pacsv.ParseOptions()}, {"parse_options": None}]
)
def test_unknown_options_list_the_known(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"'parse_options' .a pyarrow.csv.ParseOptions"):
        CsvFormat(options)


def test_line_ends_of_old_macs_are_read_from_the_top(tmp_path: Path) -> None:
    csv, file, facts = found(tmp_path / "a.csv", b"a,b\r1,2\r3,4")
    assert not facts.splittable
    assert rows_of(csv, FileSplit(file), facts.schema) == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    with pytest.raises(OptionError, match=r"a\.csv, bytes 0-5"):
        rows_of(csv, FileSplit(file, byte_range=ByteRange(0, 5)), facts.schema)


def test_quoted_newlines_in_the_first_block_are_noticed(tmp_path: Path) -> None:
    csv, file, facts = found(tmp_path / "a.csv", b'a,b\n1,"x\n2,y"\n3,z\n')
    assert not facts.splittable
    assert rows_of(csv, FileSplit(file), facts.schema) == [
        {"a": 1, "b": "x\n2,y"},
        {"a": 3, "b": "z"},
    ]


def test_the_first_block_may_end_inside_quotes(tmp_path: Path) -> None:
    options = {"read_options": pacsv.ReadOptions(block_size=64)}
    text = b"a,b\n" + b'1,"x\ny"\n' * 20
    assert text[:64].count(b'"') % 2 == 1
    csv, file, facts = found(tmp_path / "a.csv", text, options)
    assert not facts.splittable
    assert rows_of(csv, FileSplit(file), facts.schema) == [{"a": 1, "b": "x\ny"}] * 20


def test_escaped_newlines_are_read_from_the_top(tmp_path: Path) -> None:
    options = {"parse_options": pacsv.ParseOptions(escape_char="\\")}
    csv, file, facts = found(tmp_path / "a.csv", b"a,b\n1,x\\\ny\n2,z\n", options)
    assert not facts.splittable
    rows = rows_of(csv, FileSplit(file), facts.schema)
    assert rows == [{"a": 1, "b": "x\ny"}, {"a": 2, "b": "z"}]


def test_a_quoted_newline_at_a_cut_is_an_error_and_never_other_rows(tmp_path: Path) -> None:
    head = b"a,b\n" + b"1,x\n" * 300_000
    text = head + b'1,"x\n2,y"\n3,z\n'
    csv, file, facts = found(tmp_path / "a.csv", text)
    assert facts.splittable
    cut = FileSplit(file, byte_range=ByteRange(len(head), 3))
    with pytest.raises(ReadError, match=r"a\.csv: .*line 300002.*newlines_in_values=True"):
        rows_of(csv, cut, facts.schema)


def test_an_open_quote_at_the_end_is_an_error(tmp_path: Path) -> None:
    for text in (b'a,b\n1,"x\n', b'a,b\n1,"x\n2,y\n', b'a,b\n\n1,"x'):
        with pytest.raises(ReadError, match="a quoted value goes on"):
            read(tmp_path / "a.csv", text)


def test_stray_quotes_are_values(tmp_path: Path) -> None:
    assert read(tmp_path / "a.csv", b'a,b\n\n1,5" pipe\n')[0]["b"] == '5" pipe'


def test_lines_longer_than_arrows_blocks(tmp_path: Path) -> None:
    long = "x" * 700_000
    rows = read(tmp_path / "a.csv", f"a,b\n1,{long}\n2,{long}\n3,y\n".encode())
    assert [len(row["b"]) for row in rows] == [700_000, 700_000, 1]


def test_repeated_names_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"x,y,x\n1,2,3\n")
    with pytest.raises(SchemaError, match=r"a\.csv has two columns named 'x'"):
        discover(tmp_path / "a.csv")


def test_a_type_that_text_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"a\.csv: .*list.*schema="):
        read(tmp_path / "a.csv", b"a\n1\n", schema=pa.schema([("a", pa.list_(pa.int8()))]))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"oops,2", r"column 'a': .*int64: invalid value 'oops'.*schema=.*format_options="),
        (b"1,2,3", r".*Expected 2 columns, got 3: 1,2,3"),
        (b"1", r".*Expected 2 columns, got 1"),
        (b"1,\xff", r"column 'b': .*invalid UTF8 data .'1,.+xff'"),
        (b"1.5,x", r"column 'a': .* '1.5'"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_misfit_names_line_column_and_value(
    tmp_path: Path, line: bytes, complaint: str, suffix: str
) -> None:
    text = b"a,b\r\n\r\n" + b"1,x\r\n" * 400_000 + line + b"\r\n" + b"2,y\r\n" * 1000
    path = tmp_path / f"a.csv{suffix}"
    with pa.output_stream(path) as stream:
        stream.write(text)
    file = DataFileInfo(str(path), splittable=not suffix)
    types = pa.schema([("a", pa.int64()), ("b", pa.string())])
    with pytest.raises(ReadError, match=rf"a\.csv{suffix}, line 400003: {complaint}"):
        rows_of(CsvFormat(), FileSplit(file), types, 300_000)


def test_bytes_that_are_no_text_in_the_first_block(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"line 3: column 'b': .* UTF8"):
        read(tmp_path / "a.csv", b"a,b\n1,x\n1,\xff\n")
    binary = pa.schema([("b", pa.binary())])
    assert read(tmp_path / "a.csv", b"a,b\n1,\xff\n", schema=binary) == [{"a": 1, "b": b"\xff"}]


def test_a_misfit_in_a_stream_names_the_file(tmp_path: Path) -> None:
    options = {"parse_options": pacsv.ParseOptions(newlines_in_values=True)}
    csv, file, _ = found(tmp_path / "a.csv", b"a\n1\nx\n", options)
    with pytest.raises(ReadError, match=r"a\.csv, after row 0: .*'x'.*schema="):
        rows_of(csv, FileSplit(file), pa.schema([("a", pa.int64())]))
