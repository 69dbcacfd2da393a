"""JSON: the contract for lines and arrays, ranges, and errors that name line and field."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import OptionError, ReadError, SchemaError
from headrace.model import ByteRange, DataFileInfo, FileSplit
from headrace.sources.files._json import JsonFormat, JsonLinesFormat
from headrace.sources.files.protocol import FileFacts, Format
from headrace.storage import store_for
from headrace.testing import FormatContract

BLOCK_BYTES = 1 << 20


class TestJsonLines(FormatContract):
    typed = False
    counted = False
    truncation_shows = False

    @pytest.mark.parametrize("kept", [0.01, 0.3, 0.7, 0.98, "all but a byte"])
    def test_a_truncated_file_is_an_error_that_names_it(
        self, path: Path, kept: float | str
    ) -> None:
        """Nothing at all is an empty file, and so is not among these."""
        super().test_a_truncated_file_is_an_error_that_names_it(path, kept)

    def format(self) -> Format:
        return JsonLinesFormat()

    def write(self, path: Path, table: pa.Table) -> None:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())
        path.write_text(lines, encoding="utf-8")

    def test_a_column_that_the_file_lacks_is_absent(self, path: Path) -> None:
        """Which fields a file has is known at its end: one that no row has comes as nulls."""
        self.write(path, self.sample())
        store, file = self.discover(path)
        wanted = pa.schema([("Größe", pa.float64()), ("id", pa.int64())])
        got = self.read_all(store, FileSplit(file), wanted)
        assert got.column("Größe").null_count == got.num_rows == self.sample().num_rows

    def test_rows_are_counted_when_no_wanted_column_is_in_the_file(self, path: Path) -> None:
        self.write(path, self.sample())
        store, file = self.discover(path)
        for wanted in (pa.schema([]), pa.schema([("elsewhere", pa.int8())])):
            tables = list(self.tables(store, FileSplit(file), wanted))
            assert sum(table.num_rows for table in tables) == self.sample().num_rows
            assert all(table.schema.names == wanted.names for table in tables)


class TestCompressedJsonLines(TestJsonLines):
    truncation_shows = True

    @pytest.fixture(params=[".gz", ".zst"])
    def path(self, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
        return tmp_path / f"päth with blank.jsonl{request.param}"

    def write(self, path: Path, table: pa.Table) -> None:
        with pa.output_stream(path) as stream:
            for row in table.to_pylist():
                stream.write(json.dumps(row).encode() + b"\n")


class TestJsonArray(TestJsonLines):
    indent: int | None = None
    truncation_shows = True

    def format(self) -> Format:
        return JsonFormat()

    def write(self, path: Path, table: pa.Table) -> None:
        path.write_text(json.dumps(table.to_pylist(), indent=self.indent), encoding="utf-8")

    def test_inspect_tells_what_is_in_the_file(self, path: Path) -> None:
        super().test_inspect_tells_what_is_in_the_file(path)
        assert not self.inspect(*self.discover(path)).splittable


class TestIndentedJsonArray(TestJsonArray):
    indent = 2


def found(
    path: Path, text: bytes, options: dict[str, Any] | None = None, schema: pa.Schema | None = None
) -> tuple[JsonFormat, DataFileInfo, FileFacts]:
    path.write_bytes(text)
    format_ = JsonFormat(options, schema=schema)
    file = DataFileInfo(str(path), file_size=len(text))
    facts = format_.inspect(store_for(str(path)), file)
    strict = JsonFormat(options, schema=schema, known=facts.schema)
    return strict, facts.added_to(file), facts


def rows_of(
    format_: JsonFormat, chunk: FileSplit, schema: pa.Schema, block_bytes: int = BLOCK_BYTES
) -> list[dict[str, Any]]:
    tables = format_.read(store_for(chunk.file.path), chunk, schema, block_bytes)
    return [row for table in tables for row in table.to_pylist()]


def read(
    path: Path,
    text: bytes,
    options: dict[str, Any] | None = None,
    schema: pa.Schema | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> list[dict[str, Any]]:
    format_, file, facts = found(path, text, options, schema)
    return rows_of(format_, FileSplit(file), facts.schema, block_bytes)


TYPES = pa.schema(
    [
        ("n", pa.int64()),
        ("text", pa.string()),
        ("deep", pa.struct([("list", pa.list_(pa.list_(pa.string())))])),
    ]
)
AWKWARD = st.text('a"\\[]{},:\n\ud7ff数é /', max_size=6)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.integers(-(2**63), 2**63 - 1),
            "text": AWKWARD | st.none(),
            "deep": st.none()
            | st.fixed_dictionaries({"list": st.lists(st.lists(AWKWARD, max_size=2), max_size=2)}),
        }
    ),
    max_size=8,
)
over_files = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@over_files
@given(
    rows=ROWS,
    line_end=st.sampled_from(["\n", "\r\n", "\n\n"]),
    last_newline=st.booleans(),
    ascii_only=st.booleans(),
    cuts=st.lists(st.integers(0, 400), max_size=5),
    block_bytes=st.integers(1, 200),
)
def test_any_cut_of_lines_gives_the_same_rows(
    tmp_path: Path,
    rows: list[dict[str, Any]],
    line_end: str,
    last_newline: bool,
    ascii_only: bool,
    cuts: list[int],
    block_bytes: int,
) -> None:
    text = line_end.join(json.dumps(row, ensure_ascii=ascii_only) for row in rows)
    data = (text + line_end if last_newline else text).encode()
    format_, file, facts = found(tmp_path / "a.json", data, schema=TYPES)
    assert facts.splittable
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    got = []
    for start, stop in pairwise(bounds):
        chunk = FileSplit(file, byte_range=ByteRange(start, stop - start))
        got += rows_of(format_, chunk, TYPES, block_bytes)
    assert got == rows


@over_files
@given(
    rows=ROWS,
    indent=st.sampled_from([None, 1]),
    blanks=st.sampled_from(["", " ", "\n \r\n\t"]),
    ascii_only=st.booleans(),
    block_bytes=st.integers(1, 200),
    array=st.booleans(),
)
def test_arrays_and_objects_over_lines_give_the_same_rows(
    tmp_path: Path,
    rows: list[dict[str, Any]],
    indent: int | None,
    blanks: str,
    ascii_only: bool,
    block_bytes: int,
    array: bool,
) -> None:
    objects = [json.dumps(row, indent=indent, ensure_ascii=ascii_only) for row in rows]
    separator = blanks + ("," if array else "") + blanks
    text = blanks + separator.join(objects) + blanks
    data = (f"{blanks}[{text}]{blanks}" if array else text).encode()
    options = {"parse_options": pajson.ParseOptions(newlines_in_values=True)}
    format_, file, _ = found(tmp_path / "a.json", data, options, TYPES)
    assert rows_of(format_, FileSplit(file), TYPES, block_bytes) == rows


@pytest.mark.parametrize("text", [b"", b" \n\t", b"[]", b" [ \n ] ", b"\xef\xbb\xbf"])
def test_files_without_rows(tmp_path: Path, text: bytes) -> None:
    format_, file, facts = found(tmp_path / "a.json", text)
    assert facts.schema == pa.schema([])
    assert rows_of(format_, FileSplit(file), pa.schema([("a", pa.int64())])) == []


def test_byte_order_mark_and_large_integers(tmp_path: Path) -> None:
    text = b'\xef\xbb\xbf{"a": 9007199254740993}\n{"a": null, "b": [1.5, 2]}'
    assert read(tmp_path / "a.json", text, block_bytes=1) == [
        {"a": 2**53 + 1, "b": None},
        {"a": None, "b": [1.5, 2.0]},
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"3", "expected an array or objects"),
        (b"\xff\xfe[\x00", "expected an array or objects in UTF-8"),
        (b"[1, 2]", "element 1, at byte 1: expected one object"),
        (b'[{"a": 1},]', "element 2, at byte 10: expected one object"),
        (b'[{"a": 1} {"a": 2}]', "element 1, at byte 1"),
        (b'[{"a": 1},\n\n {"a": tru}]', "line 3: not JSON"),
        (b'[{"a": 1},\n [7]]', "element 2, at byte 12: expected one object"),
        (b'[{"a": 1}, {"a"', "inside an array, after 1 elements"),
        (b'[{"a": 1}] {"a": 2}', r"end of the file at byte 9, found b'\] {"),
        (b'[{"a": 1}}', "element 1, at byte 9: expected one object"),
        (b'{"a": 1}\n\n{"a": 2]\n', "line 3: not JSON"),
        (b'{"a": 1}\n{"a": 2, "a": 3}\n', "line 2: .*twice"),
        (b'{"a": 1}\n"text"\n', "line 2: expected an object"),
        (b'{"a": 1}\n{"a": "x"}\n', "line 2: .*number to string"),
        (b'{"a": "x"}\n{"a": "\xff"}\n', "line 2: not JSON: 'utf-8'"),
    ],
)
def test_malformed_text_names_file_and_place(tmp_path: Path, text: bytes, complaint: str) -> None:
    with pytest.raises(ReadError, match=rf"a\.json.*{complaint}"):
        read(tmp_path / "a.json", text)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ('{"a": 1.5}', "field 'a' holds '1.5', which is not int64.*schema="),
        ('{"a": "x"}', "field 'a' holds '\"x\"'"),
        ('{"a": 2, "new": 1}', "field 'new' is not in the schema"),
        ('{"a": 2, "s": {"x": 1, "y": 2}}', "field 's' holds .*struct<x: int64>"),
        ('{"a": 2', "not JSON"),
    ],
)
@pytest.mark.parametrize("array", [True, False])
def test_a_misfit_after_the_first_block_names_line_and_field(
    tmp_path: Path, row: str, complaint: str, array: bool
) -> None:
    rows = ['{"a": 1, "s": {"x": 1}}'] * 50_000
    rows[45_000] = row
    lines = "\n,".join(rows) if array else "\n".join(rows)
    text = f"[{lines}]" if array else lines
    format_, file, facts = found(tmp_path / "a.json", text.encode())
    with pytest.raises(ReadError, match=rf"a\.json.*line 45001: {complaint}"):
        rows_of(format_, FileSplit(file), facts.schema, 300_000)


def test_unknown_fields_can_be_ignored(tmp_path: Path) -> None:
    _, file, _ = found(tmp_path / "a.json", b'{"a": 1}\n{"a": 2, "new": 1}\n')
    wanted = pa.schema([("a", pa.int64())])
    ignoring = pickle.loads(pickle.dumps(JsonFormat()))
    assert rows_of(ignoring, FileSplit(file), wanted) == [{"a": 1}, {"a": 2}]
    with pytest.raises(ReadError, match=r"'new'"):
        rows_of(JsonFormat(known=wanted), FileSplit(file), wanted)


def test_given_types_that_need_a_cast(tmp_path: Path) -> None:
    types = pa.schema(
        [
            ("vector", pa.list_(pa.float32(), 2)),
            ("day", pa.date32()),
            ("code", pa.dictionary(pa.int32(), pa.string())),
            ("half", pa.float16()),
        ]
    )
    text = b'{"vector":[1,2],"day":"2026-01-31","code":"x","half":0.5,"n":1}\n'
    format_, file, facts = found(tmp_path / "a.json", text, schema=types)
    assert facts.schema == types.append(pa.field("n", pa.int64()))
    [table] = format_.read(store_for(file.path), FileSplit(file), facts.schema, BLOCK_BYTES)
    assert table.schema == facts.schema
    row = table.to_pylist()[0]
    assert (row["vector"], str(row["day"]), row["code"]) == ([1, 2], "2026-01-31", "x")
    with pytest.raises(ReadError, match=r"line 1: field 'vector' holds '.1.'"):
        read(tmp_path / "b.json", b'{"vector":[1]}\n', schema=types)


def test_a_type_that_json_cannot_hold(tmp_path: Path) -> None:
    types = pa.schema([("a", pa.month_day_nano_interval())])
    with pytest.raises(SchemaError, match=r"a\.json: .*schema="):
        read(tmp_path / "a.json", b'{"a": 1}\n', schema=types)


def test_explicit_schema_of_the_parse_options(tmp_path: Path) -> None:
    explicit = pa.schema([("a", pa.float32())])
    only = pajson.ParseOptions(explicit_schema=explicit, unexpected_field_behavior="ignore")
    _, _, facts = found(tmp_path / "a.json", b'{"a": 1, "b": 2}\n', {"parse_options": only})
    assert facts.schema == explicit
    assert read(tmp_path / "a.json", b'{"a": 1, "b": 2}\n', {"parse_options": only}) == [{"a": 1}]


def test_lines_longer_than_arrows_blocks(tmp_path: Path) -> None:
    text = "".join(json.dumps({"a": "x" * size}) + "\n" for size in (5, 3000, 90_000))
    options = {"read_options": pajson.ReadOptions(block_size=1000)}
    rows = read(tmp_path / "a.json", text.encode(), options)
    assert [len(row["a"]) for row in rows] == [5, 3000, 90_000]


def test_unknown_options_list_the_known() -> None:
    with pytest.raises(OptionError, match=r"'read_options' .a pyarrow.json.ReadOptions"):
        JsonLinesFormat({"lines": True})


def test_arrays_cannot_be_cut(tmp_path: Path) -> None:
    format_, file, facts = found(tmp_path / "a.json", b'[{"a": 1}]')
    with pytest.raises(OptionError, match=r"a\.json, bytes 0-4"):
        rows_of(format_, FileSplit(file, byte_range=ByteRange(0, 4)), facts.schema)
