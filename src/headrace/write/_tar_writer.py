"""Tars with their indexes: one that is being written, and ``TarWriter``, which fills many."""

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
    """A tar that is whole, as JSON: ``index`` is the name of its index, the file beside it."""

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
        """Return the layout that a user gives."""
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
        """Return what an index of a tar would be called in each form, as ``ENDINGS``."""
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
    """Return the size of a tar whose members have so many bytes."""
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
    """A tar that is being written. It appears under its name, after its index, when whole."""

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
        """Return True if a sample belongs into another tar."""
        more = sum(member.room for member in members)
        return self._layout.is_full(self._size, len(self.keys), more)

    def add(
        self, key: str, members: Sequence[Member], captions: Mapping[str, str] | None = None
    ) -> None:
        """Append a sample. After any error but an OptionError only ``abandon`` is of use.

        Args:
            key: Its key.
            members: Its members.
            captions: Captions for the index, as JSON, by the names of members.
        """
        if key in self.keys:
            raise KeyRefusedError(
                f"the key {key!r} comes twice in {self._path.name}: its fields would be taken for "
                "those of one sample; give each sample a key of its own"
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
                    f"{member.name} was to have {content.size:,} bytes and has {written:,}: the "
                    "source changed while it was read; run the same again"
                )
            self._write(bytes(-written % BLOCK_BYTES))

    def finish(self) -> ShardReceipt:
        """End the tar, write its index, and show both."""
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
        """Write the index, and remove indexes in other forms, which readers would take for it."""
        layout = self._layout
        names = layout.index_names(self._path.name)
        for form, name in names.items():
            if form != layout.index:
                self._path.with_name(name).unlink(missing_ok=True)
        if layout.index is None:
            if self._captions:
                logger.warning(
                    "%s has no index, which alone could hold %d captions: they are left out",
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
    """Raised where a tar is given up, so that it does not appear."""


@documented(TarWritingOptions)
class TarWriter:
    """Writes samples into tars of a certain size, each with its index, in a directory.

    A sample is ``{"__key__": "a/0001", "jpg": bytes, "json": {...}, "cls": 3}``; values that are
    no bytes are encoded by the extension of their field (txt, json, cls, npy, npz, and pictures by
    Pillow). Fields that are None are left out. The same samples make the same bytes.

    A tar appears under its name when it is whole, behind its index. What an error or a kill cuts
    short is not there: ``resume=True`` continues behind the last whole tar, and ``samples_written``
    is the number of samples in those. Use it as a context manager, or ``close`` it.

    Args:
        directory: The directory, which is made if it does not exist.
        resume: Continue behind the tars that are there.
        overwrite: Remove the tars that are there.
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
            raise OptionError("resume continues what is there, and overwrite removes it")
        location = target_location(directory)
        if "://" in location:
            raise OptionError(
                f"{location} is not on this machine, where a TarWriter writes; copy the tars there "
                "when they are whole, or use write_tar"
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
        """The number of samples that were taken, with those that were there before."""
        if not self._closed:
            self._open()
        written = sum(shard["samples"] for shard in self.shards)
        return written + (0 if self._shard is None else len(self._shard.keys))

    def write(self, sample: Mapping[str, Any]) -> None:
        """Append a sample; one that is refused leaves all as it was."""
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
        """Leave without the tar that is not whole."""
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
        """Look after what earlier writers left."""
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
                "continue behind what is there, or overwrite=True to replace it"
            )
        if numbers != list(range(len(numbers))):
            missing = next(n for n, number in enumerate(numbers) if n != number)
            raise OptionError(
                f"{self.directory} holds {self._layout.name(numbers[-1])} and no "
                f"{self._layout.name(missing)}: it is unknown how many samples are missing"
            )
        self.shards = [self._receipt(self._layout.name(number)) for number in numbers]

    def _remove(self, tar: str) -> None:
        """Remove a tar, and then its index: an index alone misleads no reader."""
        (self.directory / tar).unlink()
        for index in self._layout.index_names(tar).values():
            (self.directory / index).unlink(missing_ok=True)

    def _receipt(self, tar: str) -> ShardReceipt:
        """Return the receipt of a tar that is there already, with an index in whichever form."""
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
        # Readers leave out files such as __info__.json; here they were samples like all others.
        samples = pc.count_distinct(sample_keys(index.names)).as_py()
        return {
            "name": tar,
            "size_bytes": size,
            "samples": samples,
            "index": found,
            "index_bytes": index_bytes,
        }
