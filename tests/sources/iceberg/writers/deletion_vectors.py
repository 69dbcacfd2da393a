"""Deletion vectors of version 3: roaring bitmaps as blobs of a Puffin file."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Mapping, Sequence

from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from pyroaring import BitMap64

from writers.committing import commit_files, data_files, describe_file, live_entries

PUFFIN_MAGIC = b"PFA1"
VECTOR_MAGIC = b"\xd1\xd3\x39\x64"


def append_deletion_vectors(
    table: Table, positions: Mapping[str, Sequence[int]], *, one_file: bool = True
) -> list[str]:
    """Delete rows by vectors, all in one Puffin file or in one each; the paths of those.

    A data file has one vector at most: one that is there already is replaced by the union.
    """
    known = {file.file_path: file for file in data_files(table)}
    old = _vectors(table)
    merged = {
        path: sorted({*given, *(read_vector(table, old[path]) if path in old else ())})
        for path, given in positions.items()
    }
    groups = [sorted(merged)] if one_file else [[path] for path in sorted(merged)]
    written: list[DataFile] = []
    for paths in groups:
        written += _write(table, {path: merged[path] for path in paths}, known)
    commit_files(
        table,
        added=written,
        removed=lambda file: is_vector(file) and file._data[17] in merged,
    )
    return sorted({file.file_path for file in written})


def vector_blob(positions: Sequence[int]) -> bytes:
    """The blob `deletion-vector-v1`: its length, magic, bitmap and checksum."""
    vector = VECTOR_MAGIC + BitMap64(positions).serialize()
    return len(vector).to_bytes(4, "big") + vector + zlib.crc32(vector).to_bytes(4, "big")


def puffin_file(blobs: Mapping[str, bytes], cardinalities: Mapping[str, int]) -> bytes:
    """A Puffin file with a blob for each data file, in this order."""
    content, footer = PUFFIN_MAGIC, []
    for path, blob in blobs.items():
        footer.append(
            {
                "type": "deletion-vector-v1",
                "fields": [2147483545],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": {
                    "referenced-data-file": path,
                    "cardinality": str(cardinalities[path]),
                },
            }
        )
        content += blob
    payload = json.dumps({"blobs": footer, "properties": {"created-by": "tests"}}).encode()
    end = len(payload).to_bytes(4, "little") + bytes(4) + PUFFIN_MAGIC
    return content + PUFFIN_MAGIC + payload + end


def is_vector(file: DataFile) -> bool:
    return file.content == DataFileContent.POSITION_DELETES and file._data[18] is not None


def read_vector(table: Table, file: DataFile) -> list[int]:
    """The positions of a vector; only of those that were written here."""
    offset, length = file._data[18:20]
    with table.io.new_input(file.file_path).open() as stream:
        blob = stream.read()[offset : offset + length]
    return list(BitMap64.deserialize(blob[8:-4]))


def _vectors(table: Table) -> dict[str, DataFile]:
    files = (entry.data_file for entry in live_entries(table))
    return {file._data[17]: file for file in files if is_vector(file)}


def _write(
    table: Table, positions: Mapping[str, Sequence[int]], known: Mapping[str, DataFile]
) -> list[DataFile]:
    blobs = {path: vector_blob(given) for path, given in positions.items()}
    content = puffin_file(blobs, {path: len(given) for path, given in positions.items()})
    name = f"{uuid.uuid4()}.puffin"
    place = table.location_provider().new_data_location(data_file_name=name)
    with table.io.new_output(place).create() as stream:
        stream.write(content)
    offset, written = len(PUFFIN_MAGIC), []
    for path, blob in blobs.items():
        written.append(
            describe_file(
                path=place,
                file_format="puffin",
                rows=len(positions[path]),
                size=len(content),
                content=DataFileContent.POSITION_DELETES,
                partition=known[path].partition,
                spec_id=known[path].spec_id,
                referenced_data_file=path,
                content_offset=offset,
                content_size_in_bytes=len(blob),
            )
        )
        offset += len(blob)
    return written
