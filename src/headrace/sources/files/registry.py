"""The formats there are, by name, by extension, or by the content of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import NothingFoundError, OptionError
from headrace.model import DataFileInfo
from headrace.sources.arrow.format import ArrowFormat
from headrace.sources.files.csv import CsvFormat
from headrace.sources.files.failures import naming
from headrace.sources.files.json import JsonFormat, JsonLinesFormat
from headrace.sources.files.orc import OrcFormat
from headrace.sources.files.protocol import Format
from headrace.sources.files.sniffing import compression_in, hint_of, looks_like, read_head
from headrace.sources.parquet.format import ParquetFormat
from headrace.storage import FileStatus, Listing

__all__ = ["FORMAT_NAMES", "format_of", "make_format", "select_files"]

_EXTENSIONS: dict[str, tuple[str, ...]] = {
    kind.name: kind.extensions
    for kind in (ParquetFormat, OrcFormat, CsvFormat, JsonFormat, JsonLinesFormat, ArrowFormat)
}
FORMAT_NAMES = tuple(_EXTENSIONS)
_COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4")


def make_format(
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    schema: pa.Schema | None = None,
    known: pa.Schema | None = None,
) -> Format:
    """Return the format of a name with a user's options.

    Args:
        name: Name of the format.
        options: Options of the user for the format.
        schema: Types of columns, for formats that store none.
        known: All columns of the data set: a field of JSON beside them is an error.
    """
    given = dict(options or {})
    if name == "csv":
        return CsvFormat(given, schema=schema)
    if name == "json":
        return JsonFormat(given, schema=schema, known=known)
    if name == "jsonl":
        return JsonLinesFormat(given, schema=schema, known=known)
    if name == "parquet":
        return ParquetFormat(given)
    if given:
        raise OptionError(f"format_options are for csv, json, jsonl and parquet, not for {name}")
    return OrcFormat() if name == "orc" else ArrowFormat()


def select_files(listing: Listing, format_: str | None) -> tuple[str, list[FileStatus]]:
    """Return the format and the files of it.

    Without a format the extensions decide, and must agree. Where there is none that is known, the
    first file that is not empty is looked into. Of a directory only files with an extension of the
    format are taken, or, if there is none, those without any extension.
    """
    if format_ is not None and format_ not in _EXTENSIONS:
        raise OptionError(f"format must be one of {', '.join(FORMAT_NAMES)} or None: {format_!r}")
    by_format: dict[str | None, list[FileStatus]] = {}
    for file in listing.files:
        by_format.setdefault(format_of(file.path), []).append(file)
    if format_ is None:
        format_ = _only_format(listing, by_format)
    named = [f for f in listing.files if f.path in listing.named]
    walked = [f for f in by_format.get(format_, []) if f.path not in listing.named]
    if not walked and not named:
        walked = _without_extension(listing)
    files = sorted([*named, *walked], key=lambda file: file.path)
    if not files:
        raise NothingFoundError(
            f"no {format_} file among the {len(listing.files)} files of "
            f"{', '.join(listing.roots)}; a {format_} file ends in "
            f"{' or '.join(_EXTENSIONS[format_])}"
        )
    return format_, files


def format_of(path: str) -> str | None:
    """The format that an extension stands for, also when the file is compressed."""
    name = path.rpartition("/")[2].lower()
    for compression in _COMPRESSIONS:
        name = name.removesuffix(compression)
    return next((f for f, endings in _EXTENSIONS.items() if name.endswith(endings)), None)


def _only_format(listing: Listing, by_format: Mapping[str | None, Sequence[FileStatus]]) -> str:
    known = [name for name in by_format if name is not None]
    _refuse_tars(listing, by_format)
    if len(known) == 1:
        return known[0]
    if not known:
        return _seen_format(listing)
    raise OptionError(
        f"{', '.join(listing.roots)} holds {' and '.join(sorted(known))} files; "
        "give format= one of them"
    )


def _without_extension(listing: Listing) -> list[FileStatus]:
    return [file for file in listing.files if "." not in file.path.rpartition("/")[2]]


def _seen_format(listing: Listing) -> str:
    """Return the format that the first file with content looks like."""
    files = [f for f in listing.files if f.path in listing.named] or _without_extension(listing)
    for file in files:
        if file.size == 0:
            continue
        info = DataFileInfo(file.path, file.size, etag=file.etag)
        with naming(file.path):
            head = read_head(listing.store, info)
        compression, name = compression_in(head), looks_like(head)
        if compression is not None and not file.path.lower().endswith(compression[1]):
            raise OptionError(f"{file.path}: {hint_of(file.path, head, name or '')}")
        if name is None:
            raise OptionError(
                f"{file.path}: neither its extension nor its content tells a format; "
                f"give format= one of {', '.join(FORMAT_NAMES)}"
            )
        return name
    raise OptionError(
        f"no extension in {', '.join(listing.roots)} tells a format, and there is no file with "
        f"content to look into; give format= one of {', '.join(FORMAT_NAMES)}"
    )


def _refuse_tars(listing: Listing, by_format: Mapping[str | None, Sequence[FileStatus]]) -> None:
    """Tars beside nothing else, but what may be their indexes, are not what is meant here."""
    tars = {file.path[:-4] for file in by_format.get(None, []) if file.path.endswith(".tar")}
    others = [file.path for name in by_format if name is not None for file in by_format[name]]
    indexes = [path for path in others if path.removesuffix(".json") in tars]
    indexes += [path for path in others if path.removesuffix(".idx.arrow") in tars]
    if tars and len(indexes) == len(others):
        raise OptionError(
            f"{', '.join(listing.roots)} holds tars; open them with headrace.TarDataset, or give "
            f"format= one of {', '.join(FORMAT_NAMES)} for other files"
        )
