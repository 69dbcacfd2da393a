"""Tars with their indexes: an unfinished tar, and ``TarWriter``, which fills many."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import pyarrow.compute as pc

from headrace.errors import FileChangedError, OptionError
from headrace.model import DataFileInfo
from headrace.options import TarWritingOptions, arguments, documented, parse_bytes, resolve
from headrace.sources.tar.checks import check_index
from headrace.sources.tar.grouping import sample_keys
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.index_files import ENDINGS, read_index, with_captions, write_index_as
from headrace.sources.tar.scan import scan_tar
from headrace.storage import LocalStore, atomic_write, remove_partial
from headrace.write._places import PathLike, locked, target_location, writing
from headrace.write._tar_format import (
    BLOCK_BYTES,
    RECORD_BYTES,
    KeyRefusedError,
    TarPayload,
    checked_fields,
    checked_key,
    encoded,
    header,
    room,
)

logger = logging.getLogger(__name__)

_PATTERN = re.compile(r"(?![._])[^/{}]*\{(:(0[0-9]+)?d)?\}[^/{}]*\.tar")
_BUFFER_BYTES = 1 << 20
_LOCK = ".headrace-writer"


class ShardReceipt(TypedDict):
    """A complete tar, as JSON: ``index`` is the name of the index file beside it."""

    name: str
    size_bytes: int
    samples: int
    index: str | None
    index_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TarLayout:
    """The sizes and names of tars, and the content of their indexes: ``TarWritingOptions``."""

    shard_bytes: int
    shard_samples: int | None
    pattern: str
    index: str | None
    geometry: bool
    hash: bool
    sidecars: bool

    @classmethod
    def of(cls, given: TarWritingOptions) -> TarLayout:
        """Return the layout that the user wants."""
        if not _PATTERN.fullmatch(given["pattern"]):
            raise OptionError(
                'pattern must be a name with one number, such as "shard_{:05d}.tar", not '
                f"{given['pattern']!r}"
            )
        size = parse_bytes("shard_bytes", given["shard_bytes"])
        return cls(**{**arguments(cls, given), "shard_bytes": size})

    def name(self, shard: int) -> str:
        """Return the name of a tar."""
        return self.pattern.format(shard)

    def index_names(self, tar: str) -> dict[str, str]:
        """Return the name of the index of a tar in each form."""
        return {form: tar.removesuffix(".tar") + ending for form, ending in ENDINGS.items()}

    def numbers(self, directory: Path) -> list[int]:
        """Return the numbers of the tars in a directory, sorted.

        Raises:
            OptionError: A tar was numbered with other digits.
        """
        before, _, rest = self.pattern.partition("{")
        after = rest.partition("}")[2]
        numbered = re.compile(re.escape(before) + r"([0-9]+)" + re.escape(after))
        names = sorted(os.listdir(directory))
        found = [match for name in names if (match := numbered.fullmatch(name))]
        for match in found:
            if self.name(int(match[1])) != match[0]:
                raise OptionError(
                    f"{directory} holds {match[0]}, which the pattern {self.pattern!r} would call "
                    f"{self.name(int(match[1]))}; give the pattern that it was written with, or "
                    "another directory"
                )
        return sorted(int(match[1]) for match in found)

    def is_full(self, size: int, samples: int, more: int) -> bool:
        """Return True if a tar of this size would become too large by ``more`` bytes."""
        enough = self.shard_samples is not None and samples >= self.shard_samples
        return samples > 0 and (enough or whole_size(size + more) > self.shard_bytes)


def whole_size(size: int) -> int:
    """Return the size of a tar whose members have this many bytes."""
    whole = size + 2 * BLOCK_BYTES  # a tar ends with two empty blocks
    return whole + -whole % RECORD_BYTES


@dataclass(frozen=True, slots=True)
class Pieces:
    """A payload in pieces, which may be too large for memory.

    Attributes:
        size: The bytes of all pieces.
        pieces: The bytes.
    """

    size: int
    pieces: Iterable[TarPayload]


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a tar that is to be written."""

    name: str
    content: Pieces

    @property
    def room(self) -> int:
        """The bytes of a tar that it takes."""
        return room(self.name, self.content.size)

    @classmethod
    def all(cls, key: str, sample: Mapping[str, Any]) -> list[Member]:
        """Return the members of a sample, checked and encoded."""
        members = []
        for name, value in checked_fields(key, sample).items():
            if not isinstance(value, Pieces):
                payload = encoded(name, value)
                value = Pieces(len(payload), (payload,))
            members.append(cls(name, value))
        return members


class WrittenShard:
    """An unfinished tar. It appears under its name when it is complete, after its index."""

    def __init__(self, directory: Path, layout: TarLayout, number: int) -> None:
        self.keys: set[str] = set()
        self._layout = layout
        self._path = directory / layout.name(number)
        self._size = 0
        self._captions: dict[str, str] = {}
        self._opened = ExitStack()
        with writing(self._path):
            directory.mkdir(parents=True, exist_ok=True)
            self._partial = self._opened.enter_context(atomic_write(self._path))
            file = open(self._partial, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115
            self._file = self._opened.enter_context(file)

    def is_full(self, members: Sequence[Member]) -> bool:
        """Return True if a sample belongs in another tar."""
        more = sum(member.room for member in members)
        return self._layout.is_full(self._size, len(self.keys), more)

    def add(
        self, key: str, members: Sequence[Member], captions: Mapping[str, str] | None = None
    ) -> None:
        """Append a sample. After an error other than an OptionError, call ``abandon``.

        Args:
            key: Its key.
            members: Its members.
            captions: Captions for the index, as JSON, by the names of members.
        """
        if key in self.keys:
            raise KeyRefusedError(
                f"the key {key!r} comes twice in {self._path.name}: readers would merge both into "
                "one sample; give each sample a different key"
            )
        self.keys.add(key)
        self._captions.update(captions or {})
        for member in members:
            content = member.content
            self._write(header(member.name, content.size))
            before = self._size
            for piece in content.pieces:
                self._write(piece)
            written = self._size - before
            if written != content.size:
                raise FileChangedError(
                    f"{member.name} should have {content.size:,} bytes but has {written:,}: "
                    "the source changed while it was read; run the same command again"
                )
            self._write(bytes(-written % BLOCK_BYTES))

    def finish(self) -> ShardReceipt:
        """End the tar, write its index, and make both visible."""
        try:
            self._write(bytes(whole_size(self._size) - self._size))
            with writing(self._path):
                self._file.close()
                index = self._write_index()
                self._opened.close()
        except BaseException:
            self.abandon()
            raise
        return {
            "name": self._path.name,
            "size_bytes": self._size,
            "samples": len(self.keys),
            "index": None if index is None else index.name,
            "index_bytes": 0 if index is None else index.stat().st_size,
        }

    def abandon(self) -> None:
        """Remove the tar."""
        with suppress(_Abandoned, OSError), self._opened:  # buffers may have no room either
            raise _Abandoned

    def _write(self, data: TarPayload) -> None:
        with writing(self._path):
            self._file.write(data)
        self._size += len(data)

    def _write_index(self) -> Path | None:
        """Write the index, and remove indexes in other forms, which readers could use instead."""
        layout = self._layout
        names = layout.index_names(self._path.name)
        for form, name in names.items():
            if form != layout.index:
                self._path.with_name(name).unlink(missing_ok=True)
        if layout.index is None:
            if self._captions:
                logger.warning(
                    "%s has no index, and only an index can hold %d captions: they are left out",
                    self._path.name,
                    len(self._captions),
                )
            return None
        path = self._path.with_name(names[layout.index])
        write_index_as(path, [(self._path.name, self._index())])
        return path

    def _index(self) -> TarIndex:
        """Return the index of the tar, with captions that came with members."""
        layout = self._layout
        index = scan_tar(
            LocalStore(),
            DataFileInfo(str(self._partial), file_size=self._size),
            geometry=layout.geometry,
            sidecars=layout.sidecars,
            hash=layout.hash,
        )
        index = replace(index, facts=replace(index.facts, etag=None))
        if not self._captions:
            return index
        texts = enumerate(map(self._captions.get, index.names.to_pylist()))
        return with_captions(index, {member: text for member, text in texts if text is not None})


class _Abandoned(Exception):
    """Raised to abandon a tar, so that it does not appear."""


@documented(TarWritingOptions)
class TarWriter:
    """Writes samples into tars of a certain size, each with its index, in a directory.

    A sample is ``{"__key__": "a/0001", "jpg": bytes, "json": {...}, "cls": 3}``; values other than
    bytes are encoded by the extension of their field (txt, json, cls, npy, npz, and pictures by
    Pillow). Fields that are None are left out. The same samples make the same bytes.

    A tar appears under its name when it is complete, after its index. An error or a kill discards
    the unfinished tar: ``resume=True`` continues after the last complete tar, and
    ``samples_written`` is the number of samples in complete tars. Use it as a context manager, or
    ``close`` it.

    Args:
        directory: The directory, which is created if necessary.
        resume: Continue after the existing tars.
        overwrite: Remove the existing tars.
        **layout: The sizes and names of tars, and the content of their indexes.

    Raises:
        OptionError: The directory holds tars already, or an option has a wrong value.

    Examples:
        ```python
        from headrace import TarWriter

        with TarWriter("tars/", shard_samples=50) as writer:
            for number in range(100):
                writer.write({"__key__": f"{number:04d}", "txt": "text", "cls": number % 3})
        assert [shard["samples"] for shard in writer.shards] == [50, 50]
        ```
    """

    def __init__(
        self,
        directory: PathLike,
        *,
        resume: bool = False,
        overwrite: bool = False,
        **layout: Unpack[TarWritingOptions],
    ) -> None:
        if resume and overwrite:
            raise OptionError(
                "resume continues the existing tars, and overwrite removes them; give only one"
            )
        location = target_location(directory)
        if "://" in location:
            raise OptionError(
                f"{location} is remote, and a TarWriter writes local files only; copy the tars "
                "there when they are complete, or use write_tar"
            )
        self.directory = Path(location)
        self.shards: list[ShardReceipt] = []
        self._layout = TarLayout.of(resolve(TarWritingOptions, layout))
        self._resume, self._overwrite = resume, overwrite
        self._lock: Any = None
        self._shard: WrittenShard | None = None
        self._closed = False

    @property
    def samples_written(self) -> int:
        """The number of samples, including those of earlier writers."""
        if not self._closed:
            self._open()
        written = sum(shard["samples"] for shard in self.shards)
        return written + (0 if self._shard is None else len(self._shard.keys))

    def write(self, sample: Mapping[str, Any]) -> None:
        """Append a sample; a refused sample changes nothing."""
        key = checked_key(sample)
        members = Member.all(key, sample)
        self._open()
        try:
            if self._shard is not None and self._shard.is_full(members):
                self._finish()
            if self._shard is None:
                self._shard = WrittenShard(self.directory, self._layout, len(self.shards))
            self._shard.add(key, members)
        except OptionError:
            raise
        except BaseException:
            self.abandon()
            raise

    def close(self) -> None:
        """End the last tar."""
        try:
            if self._shard is not None:
                self._finish()
        finally:
            self._end()

    def abandon(self) -> None:
        """Close the writer without the unfinished tar."""
        if self._shard is not None:
            self._shard.abandon()
        self._end()

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _finish(self) -> None:
        assert self._shard is not None
        shard, self._shard = self._shard, None
        self.shards.append(shard.finish())

    def _open(self) -> None:
        if self._lock is not None:
            return
        if self._closed:
            raise OptionError(f"the writer of {self.directory} is closed")
        self._lock = locked(self.directory, _LOCK)
        try:
            with writing(self.directory):
                self._take_stock()
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self._shard, self._closed = None, True
        if self._lock is not None:
            (self.directory / _LOCK).unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    def _take_stock(self) -> None:
        """Check, continue or remove the tars of earlier writers."""
        numbers = self._layout.numbers(self.directory)
        following = self._layout.name(numbers[-1] + 1 if numbers else 0)
        for name in (following, *self._layout.index_names(following).values()):
            remove_partial(self.directory / name)
        if numbers and self._overwrite:
            for number in numbers:
                self._remove(self._layout.name(number))
            return
        if numbers and not self._resume:
            raise OptionError(
                f"{self.directory} holds {self._layout.name(numbers[0])}; give resume=True to "
                "continue after the existing tars, or overwrite=True to replace them"
            )
        if numbers != list(range(len(numbers))):
            missing = next(n for n, number in enumerate(numbers) if n != number)
            raise OptionError(
                f"{self.directory} holds {self._layout.name(numbers[-1])} but lacks "
                f"{self._layout.name(missing)}, so the number of its samples is unknown; "
                "restore that file, or give overwrite=True"
            )
        self.shards = [self._receipt(self._layout.name(number)) for number in numbers]

    def _remove(self, tar: str) -> None:
        """Remove a tar, and then its index: readers ignore an index without a tar."""
        (self.directory / tar).unlink()
        for index in self._layout.index_names(tar).values():
            (self.directory / index).unlink(missing_ok=True)

    def _receipt(self, tar: str) -> ShardReceipt:
        """Return the receipt of an existing tar, with an index in either form."""
        size = (self.directory / tar).stat().st_size
        names = self._layout.index_names(tar).values()
        found = next((name for name in names if (self.directory / name).exists()), None)
        if found is not None:
            path = self.directory / found
            index, index_bytes = read_index(path), path.stat().st_size
            check_index(index, size, str(path))
        else:
            file = DataFileInfo(str(self.directory / tar), file_size=size)
            index, index_bytes = scan_tar(LocalStore(), file, sidecars=False), 0
        # Readers leave out files such as __info__.json, but they are samples of this writer.
        samples = pc.count_distinct(sample_keys(index.names)).as_py()
        return {
            "name": tar,
            "size_bytes": size,
            "samples": samples,
            "index": found,
            "index_bytes": index_bytes,
        }
