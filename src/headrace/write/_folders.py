"""Targets that are files in a folder, local or in an object store, and their encoders."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import ipc

from headrace.errors import OptionError, ReadError, WriteError
from headrace.storage import (
    Access,
    Engine,
    RemoteStore,
    RequestError,
    atomic_write,
    flush_directory,
    protocol_of,
)
from headrace.write._copier import Receipt, TargetOptions
from headrace.write._places import not_empty, work_directory, write_error, writing

Encode = Callable[[Path, int, pa.Schema, Any], Receipt]
"""Writes the items of a part to a folder; returns ``name``, ``size_bytes`` and ``rows``."""

_MARKER = "_headrace_copy.json"
"""Name of the file that describes a copy and is written last. Readers of data files ignore it."""
_READ_ONLY = {"http", "https", "hf"}
_MOST_PARTS = 100_000
"""The number of parts whose names sort in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderTarget:
    """Files in a folder, one or more for each part.

    Attributes:
        encode: Writes the files of a part.
        staging: The local folder that files are written into first.
        overwrite: True if what is in the target may be replaced.
    """

    encode: Encode
    staging: Path
    overwrite: bool

    def refuse(self, schema: Any) -> None:
        raise NotImplementedError

    def write(self, part: int, parts: int | None, schema: Any, groups: Any) -> Receipt:
        if max(part + 1, parts or 0) > _MOST_PARTS:
            raise OptionError(
                f"the copy would have more than {_MOST_PARTS:,} files, and their names would "
                "no longer sort in order; make the files larger"
            )
        with writing(self.staging):
            self.staging.mkdir(parents=True, exist_ok=True)
        receipt = self.encode(self.staging, part, schema, groups)
        for name in reversed(_files_of(receipt)):
            self.keep(name)
        return receipt

    def holds(self, receipt: Receipt, run: str) -> bool:
        return all(self.has(name, size, run) for name, size in _files_of(receipt).items())

    def commit(self, schema: Any, receipts: Sequence[Receipt], facts: Mapping[str, Any]) -> None:
        names = [name for receipt in receipts for name in _files_of(receipt)]
        self.show(names, {**facts, "files": list(receipts)})

    def keep(self, name: str) -> None:
        """Take over a complete file of the staging folder."""

    def has(self, name: str, size_bytes: int, run: str) -> bool:
        """Return True if a kept file still exists, here or where a commit has moved it."""
        raise NotImplementedError

    def show(self, names: Sequence[str], marker: Mapping[str, Any]) -> None:
        """Make exactly these files visible; it may be called again."""
        raise NotImplementedError


def _files_of(receipt: Receipt) -> dict[str, int]:
    """Return the sizes of the files of a part. An index is kept before what it describes."""
    files = {receipt["name"]: receipt["size_bytes"]}
    if receipt.get("index"):
        files[receipt["index"]] = receipt["index_bytes"]
    return files


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFolder(FolderTarget):
    """A directory that is filled under a hidden name beside the target, and renamed when complete.

    Attributes:
        target: The directory.
    """

    target: Path

    @property
    def _replaced(self) -> Path:
        return self.target.with_name(f".{self.target.name}.headrace-replaced")

    def refuse(self, schema: Any) -> None:
        with writing(self.target):
            if self.target.exists() and not self.target.is_dir():
                raise OptionError(
                    f"{self.target} is a file, but the target must be a directory; "
                    "choose another target"
                )
            present = os.listdir(self.target) if self.target.exists() else []
        if present and not self.overwrite:
            raise not_empty(self.target)

    def has(self, name: str, size_bytes: int, run: str) -> bool:
        folder = self.target if self._is_shown(run) else self.staging
        return _has_size(folder / name, size_bytes)

    def _is_shown(self, run: str) -> bool:
        """Return True if a commit of this run has put the files in their place."""
        return not self.staging.exists() and _run_of(self.target / _MARKER) == run

    def show(self, names: Sequence[str], marker: Mapping[str, Any]) -> None:
        with writing(self.target):
            if not self._is_shown(marker["run"]):
                self._show(names, marker)
            if self._replaced.exists():
                shutil.rmtree(self._replaced)

    def _show(self, names: Sequence[str], marker: Mapping[str, Any]) -> None:
        missing = [name for name in names if not (self.staging / name).exists()]
        if missing:
            raise WriteError(
                f"{self.staging / missing[0]} was deleted during the copy; run the "
                "same command again"
            )
        for file in self.staging.iterdir():
            if file.name not in names:
                file.unlink()
        with atomic_write(self.staging / _MARKER) as path:
            path.write_text(json.dumps(marker, indent=1), encoding="utf-8")
        if self.target.is_dir() and os.listdir(self.target):
            _refuse_again(self)
            if self._replaced.exists():
                shutil.rmtree(self._replaced)
            # A kill right here leaves what was there aside until the next run.
            os.rename(self.target, self._replaced)
        flush_directory(self.staging)
        os.rename(self.staging, self.target)
        flush_directory(self.target.parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile(LocalFolder):
    """A single file, which appears when it is complete."""

    def refuse(self, schema: Any) -> None:
        with writing(self.target):
            if self.target.exists() and not self.overwrite:
                raise OptionError(f"{self.target} exists; give overwrite=True to replace it")
            if self.target.is_dir():
                raise OptionError(
                    f"{self.target} is a directory, which cannot be replaced by a file; name a "
                    "file, or give shard_records"
                )

    def has(self, name: str, size_bytes: int, run: str) -> bool:
        staged = self.staging / name
        # A file that did not exist at the start was put there by a commit.
        return _has_size(staged if staged.exists() or self.overwrite else self.target, size_bytes)

    def show(self, names: Sequence[str], marker: Mapping[str, Any]) -> None:
        (name,) = names
        if not (self.staging / name).exists() and not self.overwrite:
            return  # since it is held, it is in its place
        _refuse_again(self)
        with writing(self.target):
            os.replace(self.staging / name, self.target)
            flush_directory(self.target.parent)


def _has_size(path: Path, size_bytes: int) -> bool:
    return path.is_file() and path.stat().st_size == size_bytes


def _refuse_again(folder: LocalFolder) -> None:
    """Raise a WriteError if data has appeared that must be kept: writing may take hours."""
    try:
        folder.refuse(None)
    except OptionError as error:
        raise WriteError(f"another process has written files there meanwhile: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFolder(FolderTarget):
    """A prefix of a store. Files appear one by one; the marker says that all are complete."""

    url: str
    store: RemoteStore

    def refuse(self, schema: Any) -> None:
        if not self.overwrite and next(self.store.list(self.url), None) is not None:
            raise not_empty(self.url)

    def keep(self, name: str) -> None:
        """Send a file; first remove the marker of an older copy, which is no longer complete."""
        marker = f"{self.url}/{_MARKER}"
        if self.store.status(marker) is not None:
            self._delete(marker)
        self._send(name)
        (self.staging / name).unlink()

    def has(self, name: str, size_bytes: int, run: str) -> bool:
        found = self.store.status(f"{self.url}/{name}")
        return found is not None and found.file_size == size_bytes

    def show(self, names: Sequence[str], marker: Mapping[str, Any]) -> None:
        kept = {f"{self.url}/{name}" for name in (*names, _MARKER)}
        for file in list(self.store.list(self.url)):
            path = file.path
            if path in kept:
                continue
            if not self.overwrite:
                raise WriteError(
                    f"another process has written files to {self.url} meanwhile, such as {path}; "
                    "remove them, or give overwrite=True"
                )
            self._delete(path)
        with writing(self.staging):
            self.staging.mkdir(parents=True, exist_ok=True)
            text = json.dumps(marker, indent=1)
            (self.staging / _MARKER).write_text(text, encoding="utf-8")
        self._send(_MARKER)

    def _send(self, name: str) -> None:
        """Send a file; a large one goes in pieces, which become an object when all have arrived."""
        path, url = str(self.staging / name), f"{self.url}/{name}"
        self._ask(url, lambda engine: engine.put(path, url))

    def _delete(self, url: str) -> None:
        """Remove an object, unless another process of the copy has done so."""
        self._ask(url, lambda engine: engine.delete(url), may_be_missing=True)

    def _ask(
        self, url: str, ask: Callable[[Engine], None], *, may_be_missing: bool = False
    ) -> None:
        try:
            self.store.request(f"writing {url}", ask)
        except RequestError as error:
            if not may_be_missing:
                raise write_error(url, error.detail) from None
        except ReadError as error:
            raise write_error(url, error) from None


def files_at(options: TargetOptions, encode: Encode) -> FolderTarget:
    """Return the folder at a location."""
    protocol = protocol_of(options.location)
    how: dict[str, Any] = {"encode": encode, "overwrite": options.overwrite}
    if not protocol:
        target, staging = _target_and_staging(options)
        return LocalFolder(**how, target=target, staging=staging)
    if protocol in _READ_ONLY:
        raise OptionError(
            f"{options.location} cannot be written to; give a directory or an object store"
        )
    store, (url,) = Access(storage_options=options.storage_options).store_for([options.location])
    assert isinstance(store, RemoteStore)
    return RemoteFolder(**how, staging=options.work_dir / "headrace-parts", url=url, store=store)


def file_at(options: TargetOptions, encode: Encode) -> FolderTarget:
    """Return the single file at a location of this machine."""
    if protocol_of(options.location):
        raise OptionError(
            f"{options.location} is remote, and a single file can only be written to this machine; "
            "give shard_records to write files into a folder there"
        )
    target, staging = _target_and_staging(options)
    return LocalFile(encode=encode, overwrite=options.overwrite, target=target, staging=staging)


def _target_and_staging(options: TargetOptions) -> tuple[Path, Path]:
    """Return the local target and its staging folder beside it, so that a rename makes files
    visible.

    Each work directory has its own: two copies to one target never write each other's files.
    """
    target = Path(os.path.realpath(options.location))
    name = f".{target.name}.headrace-parts"
    if options.work_dir != work_directory(None, str(target)):
        name += f"-{hashlib.sha256(os.fsencode(options.work_dir)).hexdigest()[:8]}"
    return target, target.with_name(name)


def _run_of(marker: Path) -> str | None:
    """Return the run that a marker belongs to; None if there is no marker."""
    try:
        found = json.loads(marker.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found.get("run") if isinstance(found, dict) else None


# Encoders.


@dataclass(frozen=True, slots=True)
class OneFile:
    """Encodes a part as one file.

    Attributes:
        ending: The ending of its name.
        fill: Writes tables to a path, and returns the number of rows.
    """

    ending: str
    fill: Callable[[Path, pa.Schema, Iterator[pa.Table]], int]

    def __call__(
        self, folder: Path, part: int, schema: pa.Schema, tables: Iterator[pa.Table]
    ) -> Receipt:
        path = folder / f"part-{part:05d}.{self.ending}"
        with writing(path), atomic_write(path) as partial_path:
            rows = self.fill(partial_path, schema, tables)
        return {"name": path.name, "rows": rows, "size_bytes": path.stat().st_size}


def parquet_files(options: TargetOptions) -> FolderTarget:
    """Return a folder of Parquet files, with a row group for each table."""
    compression = options.compression or "snappy"
    _check_compression(compression, ("none", "snappy", "gzip", "brotli", "zstd", "lz4"))
    return files_at(options, OneFile("parquet", partial(_write_parquet, compression)))


def arrow_files(options: TargetOptions) -> FolderTarget:
    """Return a folder of Arrow IPC files, with a record batch for each table."""
    compression = options.compression or "none"
    _check_compression(compression, ("none", "zstd", "lz4"))
    return files_at(options, OneFile("arrow", partial(_write_arrow, compression)))


def _check_compression(given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise OptionError(f"compression must be one of {', '.join(known)}, not {given!r}")


def _write_parquet(
    compression: str, path: Path, schema: pa.Schema, groups: Iterator[pa.Table]
) -> int:
    first = next(groups, schema.empty_table())
    repeating = _repeating_columns(first)
    rows = 0
    with pq.ParquetWriter(
        path, schema, compression=compression, use_dictionary=repeating
    ) as writer:
        for group in filter(len, chain([first], groups)):
            writer.write_table(group, row_group_size=group.num_rows)
            rows += group.num_rows
    return rows


def _write_arrow(
    compression: str, path: Path, schema: pa.Schema, groups: Iterator[pa.Table]
) -> int:
    options = ipc.IpcWriteOptions(
        compression=None if compression == "none" else compression, emit_dictionary_deltas=True
    )
    before = schema.empty_table()
    rows = 0
    with (
        pa.OSFile(str(path), "wb") as sink,
        ipc.new_file(sink, schema, options=options) as writer,
    ):
        for group in groups:
            # A column has one dictionary in a file, to which values may only be added.
            joined = pa.concat_tables([before, group]).unify_dictionaries()
            writer.write_table(joined, max_chunksize=group.num_rows)
            before = joined.slice(0, 0)
            rows += group.num_rows
    return rows


def _repeating_columns(table: pa.Table) -> list[str]:
    """Return the columns that a Parquet dictionary makes smaller, judged by some rows.

    Row groups are small, so that a dictionary of values that hardly repeat would still be written,
    beside the numbers that stand for them: a quarter more to write and to read.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table.schema.empty_table(), sink)
    leaves = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    places = {name: place for place, name in enumerate(table.column_names)}
    paths = [leaves.column(place).path for place in range(len(leaves))]
    # The path of a flat column is its name, with whatever dots are in it.
    return [path for path in paths if path not in places or _repeats(table.column(places[path]))]


def _repeats(column: pa.ChunkedArray) -> bool:
    try:
        return bool(2 * pc.count_distinct(column).as_py() <= len(column))
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # dictionaries and nested types
        return True
