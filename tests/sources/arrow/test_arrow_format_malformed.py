"""Arrow IPC files that are not what they say: refused, or read by pyarrow, never other rows."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from arrow_files import look, rows_of, tables, write
from pyarrow import ipc

from headrace import StructuredDataset
from headrace.errors import ReadError, SchemaError
from headrace.model import RowRange

# --- flatbuffers: a table is found by an offset, a field of it by the vtable of the table


def target(data: bytes, position: int) -> int:
    return position + int(struct.unpack_from("<I", data, position)[0])


def field(data: bytes, table: int, number: int) -> int:
    """Return where a field of a table is."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    return table + int(struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0])


def items(data: bytes, position: int, item_bytes: int) -> range:
    """Return where the items of a vector of structs are."""
    vector = target(data, position)
    count = struct.unpack_from("<I", data, vector)[0]
    return range(vector + 4, vector + 4 + count * item_bytes, item_bytes)


def footer_of(path: Path) -> tuple[bytearray, int]:
    """Return the footer of a file, and where it begins."""
    raw = path.read_bytes()
    start = len(raw) - 10 - struct.unpack("<i", raw[-10:-6])[0]
    return bytearray(raw[start:-10]), start


def block_of(path: Path, batch: int) -> tuple[int, int, int]:
    """Return what the footer says of a batch: offset, length of the header, length of the body."""
    footer, _ = footer_of(path)
    place = items(footer, field(footer, target(footer, 0), 3), 24)[batch]
    found: tuple[int, int, int] = struct.unpack_from("<qi4xq", footer, place)
    return found


def change(path: Path, batch: int, edit: Callable[[bytearray, int], None]) -> None:
    """Edit the message of a batch: its bytes, and where in them the table of the batch is."""
    raw = bytearray(path.read_bytes())
    offset, length, _ = block_of(path, batch)
    message = raw[offset + 8 : offset + length]
    edit(message, target(message, field(message, target(message, 0), 2)))
    raw[offset + 8 : offset + length] = message
    path.write_bytes(raw)


def shift_values(message: bytearray, table: int) -> None:
    values = items(message, field(message, table, 2), 16)[1]
    struct.pack_into("<qq", message, values, 1, 160)


def shorten_values(message: bytearray, table: int) -> None:
    values = items(message, field(message, table, 2), 16)[1]
    struct.pack_into("<q", message, values + 8, 8)


@pytest.mark.parametrize("edit", [shift_values, shorten_values])
def test_what_pyarrow_refuses_is_refused(
    tmp_path: Path, edit: Callable[[bytearray, int], None]
) -> None:
    """And only the rows of that batch are lost."""
    path = tmp_path / "a.arrow"
    whole = rows_of(60, ["long"])
    write(path, whole, [20, 20, 20])
    change(path, 1, edit)
    with pytest.raises((pa.ArrowException, OSError)):
        ipc.open_file(str(path)).read_all().validate(full=True)
    file = look(path)
    with pytest.raises(ReadError, match=r"a\.arrow, rows 20-"):
        tables(file, whole.schema, RowRange(20, 3))
    assert pa.concat_tables(tables(file, whole.schema, RowRange(0, 20))).equals(whole.slice(0, 20))


@pytest.mark.parametrize("rows", [0, 5, 2**60])
def test_a_batch_with_other_rows_than_its_columns_is_refused_at_once(
    tmp_path: Path, rows: int
) -> None:
    """Nothing is known of the rows of such a file, and a batch of none is not missed."""
    path = tmp_path / "a.arrow"
    write(path, rows_of(60, ["long"]), [20, 20, 20])
    change(path, 1, lambda message, table: put(message, field(message, table, 0), rows))
    with pytest.raises((pa.ArrowException, OSError, MemoryError)):
        ipc.open_file(str(path)).read_all().validate(full=True)
    with pytest.raises(ReadError, match=r"a\.arrow: Array length did not match"):
        look(path)


def put(message: bytearray, place: int, value: int) -> None:
    struct.pack_into("<q", message, place, value)


@pytest.mark.parametrize(("offset", "metadata", "body"), [(0, 64, 0), (0, 8, -8), (4, 0, 0)])
def test_a_footer_that_does_not_agree_with_a_batch(
    tmp_path: Path, offset: int, metadata: int, body: int
) -> None:
    """It says where the values are: other bytes are never taken for them."""
    path = tmp_path / "a.arrow"
    whole = rows_of(60, ["long", "float"])
    write(path, whole, [20, 20, 20])
    block = block_of(path, 1)
    data = path.read_bytes()
    told = struct.pack("<qi4xq", *block)
    assert data.count(told) == 1
    other = (block[0] + offset, block[1] + metadata, block[2] + body)
    path.write_bytes(data.replace(told, struct.pack("<qi4xq", *other)))
    try:
        found = pa.concat_tables(tables(look(path), whole.schema, RowRange(0, 60)))
    except ReadError:
        return
    assert found.equals(whole)


def test_a_name_of_a_column_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write(path, rows_of(20, ["long"]), [20])
    path.write_bytes(path.read_bytes().replace(b"long", b"l\xffng"))
    with pytest.raises(SchemaError, match=r"a\.arrow has a column whose name is not UTF-8"):
        StructuredDataset(path, format="arrow")


def test_compression_as_early_versions_named_it(tmp_path: Path) -> None:
    """In the metadata of the message, which says no more of it than a remark of a user would."""
    path = tmp_path / "a.arrow"
    numbers = np.random.default_rng(0).integers(-(2**62), 2**62, 2_000)
    whole = pa.table({"long": numbers})
    how = ipc.IpcWriteOptions(compression="lz4", metadata_version=ipc.MetadataVersion.V4)
    with ipc.new_file(path, whole.schema, options=how) as writer:
        remark = {"ARROW:experimental_compression": "LZ4"}
        writer.write_batch(whole.to_batches()[0], custom_metadata=remark)

    def forget_compression(message: bytearray, table: int) -> None:
        vtable = table - struct.unpack_from("<i", message, table)[0]
        struct.pack_into("<H", message, vtable + 4 + 2 * 3, 0)

    change(path, 0, forget_compression)
    assert ipc.open_file(str(path)).read_all().equals(whole)
    assert pa.concat_tables(tables(look(path), whole.schema)).equals(whole)


def test_padding_before_the_schema(tmp_path: Path) -> None:
    """As other writers have it, who align more than messages."""
    path, whole = tmp_path / "a.arrow", rows_of(50, ["long", "float"])
    write(path, whole, [20, 30])
    raw, (footer, start) = path.read_bytes(), footer_of(path)
    for block in items(footer, field(footer, target(footer, 0), 3), 24):
        struct.pack_into("<q", footer, block, struct.unpack_from("<q", footer, block)[0] + 56)
    path.write_bytes(raw[:8] + bytes(56) + raw[8:start] + footer + raw[-10:])
    assert ipc.open_file(str(path)).read_all().equals(whole)
    assert pa.concat_tables(tables(look(path), whole.schema)).equals(whole)
