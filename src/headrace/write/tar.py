"""``TarWriter``: samples into indexed tar shards, in one pass."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.errors import OptionError, WriteError
from headrace.model import DataFileInfo
from headrace.options import checked_keywords
from headrace.sources.tar.checks import check_index
from headrace.sources.tar.index_files import read_index
from headrace.sources.tar.scan import scan_tar
from headrace.storage import LocalStore
from headrace.storage.file_locks import close_locked
from headrace.write.failures import writing
from headrace.write.tar_members import checked_key
from headrace.write.tar_shard import Noting, members_of
from headrace.write.tar_shards import ShardLayout, ShardReceipt, Shards, clear_unfinished
from headrace.write.work import PathLike, target_location

__all__ = ["TarWriter"]


@checked_keywords
class TarWriter:
    """Writes samples into tars of a certain size, each with its index, in a directory.

    A sample is ``{"__key__": "a/0001", "jpg": bytes, "json": {...}, "cls": 3}``; values that are
    no bytes are encoded by the extension of their field (txt, json, cls, npy, npz, and pictures by
    Pillow). Fields that are None are left out. The same samples make the same bytes.

    A tar appears under its name when it is whole, behind its index. What an error or a kill cuts
    short is not there: ``resume=True`` goes on behind the last whole tar, and ``samples_written``
    says how many samples are in those. Use it as a context manager, or ``close`` it.
    """

    def __init__(
        self,
        directory: PathLike,
        *,
        shard_bytes: int | str = "1GiB",
        shard_samples: int | None = None,
        pattern: str = "shard_{:05d}.tar",
        index: str | None = "json",
        geometry: bool = False,
        hash: bool = True,
        sidecars: bool = True,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        """``shard_bytes``: of a tar at most, unless one sample is larger.

        ``index``: the form of the index, ``"json"``, ``"arrow"`` or None for none. It says sizes
        of pictures (``geometry``), SHA-256 of members and tar (``hash``), and holds what is in
        JSON sidecars (``sidecars``).
        """
        if resume and overwrite:
            raise OptionError("resume goes on with what is there, and overwrite removes it")
        self.directory = _local(directory)
        self.shards: list[ShardReceipt] = []
        self._layout = ShardLayout(
            shard_bytes=shard_bytes,
            shard_samples=shard_samples,
            pattern=pattern,
            index=index,
            noting=Noting(geometry=geometry, hash=hash, sidecars=sidecars),
        )
        self._resume, self._overwrite = resume, overwrite
        self._lock = -1
        self._open: Shards | None = None
        self._closed = False
        self._in_shard = 0

    @property
    def samples_written(self) -> int:
        """How many samples were taken, with those that were there before."""
        if not self._closed:
            self._opened()
        return sum(shard["samples"] for shard in self.shards) + self._in_shard

    def write(self, sample: Mapping[str, Any]) -> None:
        """Append a sample; one that is refused leaves all as it was."""
        key = checked_key(sample)
        members = members_of(key, sample)
        shards = self._opened()
        try:
            shards.add(key, members)
        except WriteError:
            self.abandon()
            raise
        self._in_shard += 1

    def close(self) -> None:
        """End the last tar."""
        try:
            if self._open is not None:
                self._open.finish()
        finally:
            self._end()

    def abandon(self) -> None:
        """Leave without the tar that is not whole."""
        if self._open is not None:
            self._open.abandon()
        self._end()

    def __enter__(self) -> Self:
        self._opened()
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

    def _opened(self) -> Shards:
        if self._open is not None:
            return self._open
        if self._closed:
            raise OptionError(f"the writer of {self.directory} is closed")
        with writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.directory)
            try:
                self._take_stock()
            except BaseException:
                self._end()
                raise
        self._open = Shards(
            self.directory, self._layout, first=len(self.shards), finished=self._note
        )
        return self._open

    def _note(self, receipt: ShardReceipt) -> None:
        self.shards.append(receipt)
        self._in_shard = 0

    def _end(self) -> None:
        self._open, self._closed = None, True
        if self._lock >= 0:
            close_locked(self._lock)
            self._lock = -1

    def _take_stock(self) -> None:
        """See to what earlier runs left."""
        clear_unfinished(self.directory, self._layout)
        numbers = self._layout.numbers(self.directory)
        if numbers and self._overwrite:
            for number in numbers:
                self._remove(self._layout.name(number))
            return
        if numbers and not self._resume:
            raise OptionError(
                f"{self.directory} holds {self._layout.name(numbers[0])}; give resume=True to go "
                "on behind what is there, or overwrite=True to replace it"
            )
        if numbers != list(range(len(numbers))):
            missing = next(n for n, number in enumerate(numbers) if n != number)
            raise OptionError(
                f"{self.directory} holds {self._layout.name(numbers[-1])} and no "
                f"{self._layout.name(missing)}: it cannot be told what is missing"
            )
        self.shards = [self._receipt(self._layout.name(number)) for number in numbers]

    def _remove(self, tar: str) -> None:
        """The tar first: an index alone leads nobody astray."""
        (self.directory / tar).unlink()
        for index in self._layout.index_names(tar):
            (self.directory / index).unlink(missing_ok=True)

    def _receipt(self, tar: str) -> ShardReceipt:
        """Of a tar that is there already."""
        size = (self.directory / tar).stat().st_size
        name = self._layout.index_name(tar)
        path = None if name is None else self.directory / name
        if path is not None and path.exists():
            index = read_index(path)
            check_index(index, size, str(path))
            return {
                "name": tar,
                "size_bytes": size,
                "samples": index.num_samples,
                "index": path.name,
                "index_bytes": path.stat().st_size,
            }
        file = DataFileInfo(str(self.directory / tar), file_size=size)
        samples = scan_tar(LocalStore(), file, sidecars=False).num_samples
        return {
            "name": tar,
            "size_bytes": size,
            "samples": samples,
            "index": None,
            "index_bytes": 0,
        }


def _local(directory: PathLike) -> Path:
    location = target_location(directory)
    if "://" in location:
        raise OptionError(
            f"{location} is not on this machine, where a TarWriter writes; copy the tars there "
            "when they are whole, or use write_tar"
        )
    return Path(location)


def _locked(directory: Path) -> int:
    """The lock of a directory, which one writer has at a time."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise WriteError(f"another process is writing to {directory}; wait for it") from None
    return handle
