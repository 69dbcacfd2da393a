"""Tars for tests: made with ``tarfile``, or block by block where that would refuse."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from headrace.model import DataFileInfo
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.scan import scan_tar
from headrace.storage import LocalStore

END = bytes(1024)


def write_tar(
    path: Path, members: Iterable[tuple[str, bytes]], format: int = tarfile.USTAR_FORMAT
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for name, payload in members:
            info = tarfile.TarInfo(name)
            info.size = len(payload)
            tar.addfile(info, io.BytesIO(payload))
    return path


def header(
    name: bytes,
    size: int | bytes,
    kind: bytes = b"0",
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    signed: bool = False,
) -> bytes:
    """A header as it stands in a tar, with its checksum."""
    digits = size if isinstance(size, bytes) else b"%011o\0" % size
    block = bytearray(512)
    block[: len(name)] = name
    block[100:124] = b"0000644\x000000000\x000000000\x00"
    block[124:136] = digits.ljust(12, b"\0")
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257 : 257 + len(magic)] = magic
    block[345 : 345 + len(prefix)] = prefix
    total = sum(byte - 256 * (signed and byte > 127) for byte in block)
    block[148:156] = b"%06o\0 " % total
    return bytes(block)


def padded(payload: bytes) -> bytes:
    return payload + bytes(-len(payload) % 512)


def member(name: bytes, payload: bytes, **more: object) -> bytes:
    return header(name, len(payload), **more) + padded(payload)


def pax(records: dict[str, str | bytes], kind: bytes = b"x") -> bytes:
    """An extended header of these records."""
    body = b""
    for key, value in records.items():
        line = b" %s=%s\n" % (key.encode(), value.encode() if isinstance(value, str) else value)
        length = len(line) + 1
        while len(str(length)) + len(line) != length:
            length += 1
        body += str(length).encode() + line
    return member(b"pax", body, kind=kind)


def scanned(path: Path, **options: bool) -> TarIndex:
    size = path.stat().st_size
    return scan_tar(LocalStore(), DataFileInfo(str(path), size), **options)


def listed(index: TarIndex) -> list[tuple[str, int, int]]:
    return list(
        zip(index.names.to_pylist(), index.offsets.tolist(), index.sizes.tolist(), strict=True)
    )


def by_tarfile(path: Path) -> list[tuple[str, int, int]]:
    """The regular files of a tar as the standard library finds them."""
    with tarfile.open(path, "r:", errors="surrogateescape") as tar:
        return [(info.name, info.offset_data, info.size) for info in tar if info.isreg()]
