"""A filesystem of pyarrow that a user gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from headrace.storage.engines.protocol import Failure, RequestError
from headrace.storage.fetching import within
from headrace.storage.native import PYARROW_CLIENTS
from headrace.storage.pace import longest_wait
from headrace.storage.store import FileStatus

__all__ = ["ArrowEngine"]

_WITHOUT_THREADS = (pafs.LocalFileSystem, pafs.PyFileSystem)


class ArrowEngine:
    """Bytes by ``read_at`` of files that are opened for each request."""

    conditional = False
    secrets = ()

    def __init__(self, filesystem: pafs.FileSystem, timeout_s: float) -> None:
        self._filesystem = filesystem
        self._timeout_s = timeout_s
        inner = filesystem
        while isinstance(inner, pafs.SubTreeFileSystem):
            inner = inner.base_fs
        self._has_threads = not isinstance(inner, _WITHOUT_THREADS)

    def resolved(self, location: str) -> str:
        return location

    def status(self, path: str) -> FileStatus | None:
        with self._translated():
            ask = partial(self._filesystem.get_file_info, path)
            info = within(longest_wait(self._timeout_s), ask)
        return _status(info) if info.type == pafs.FileType.File else None

    def entries(
        self, directory: str, recursive: bool, after: str = ""
    ) -> Iterator[FileStatus | str]:
        selector = pafs.FileSelector(directory, allow_not_found=True, recursive=recursive)
        with self._translated():
            for info in self._filesystem.get_file_info(selector):
                if info.type == pafs.FileType.File:
                    yield _status(info)
                elif not recursive:
                    yield info.path

    def fetch(
        self, path: str, start: int, stop: int, etag: str | None, size: int | None = None
    ) -> Any:
        with self._translated():
            ask = partial(self._read, path, start, stop - start)
            data = within(longest_wait(self._timeout_s, stop - start), ask)
        if data.size != stop - start:
            raise RequestError(Failure.TRANSIENT, f"{data.size} bytes came, and not {stop - start}")
        return data

    def _read(self, path: str, start: int, size: int) -> pa.Buffer:
        with self._filesystem.open_input_file(path) as file:
            file.seek(start)
            return file.read_buffer(size)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise errors of pyarrow as RequestErrors; refuse where a request would hang."""
        if self._has_threads:
            PYARROW_CLIENTS.use()
        try:
            yield
        except FileNotFoundError as error:
            raise RequestError(Failure.MISSING, str(error)) from None
        except PermissionError as error:
            raise RequestError(Failure.DENIED, str(error)) from None
        except (
            Exception
        ) as error:  # those of pyarrow are also Python's; one in Python may raise any
            text = str(error) or type(error).__name__
            if "ACCESS_DENIED" in text or "HTTP status 403" in text or "ExpiredToken" in text:
                raise RequestError(Failure.DENIED, text) from None
            raise RequestError.of_client(error, text) from None


def _status(info: pafs.FileInfo) -> FileStatus:
    return FileStatus(info.path, int(info.size), None if info.mtime_ns is None else str(info.mtime))
