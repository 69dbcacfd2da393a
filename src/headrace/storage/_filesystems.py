"""Clients over the filesystems of fsspec, and over those of pyarrow that a user gives."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from ssl import SSLError
from typing import Any

import fsspec
import pyarrow.fs as pafs
from fsspec.implementations.arrow import ArrowFSWrapper

from headrace.errors import MissingExtraError, OptionError, WorkerError
from headrace.model import DataFileInfo
from headrace.storage._engine import Engine, RequestError, StoreFailure, complete
from headrace.storage._store import check_version
from headrace.storage._threads import PYARROW_CLIENTS

_MARKS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")
_DENIED = ("ACCESS_DENIED", "HTTP status 403", "ExpiredToken")
"""Words with which pyarrow's clients say that access was denied."""

_MISTAKES = (AttributeError, ImportError, LookupError, NotImplementedError, TypeError, ValueError)
_NO_FILES = (IsADirectoryError, NotADirectoryError)
"""Errors of filesystems that no retry can cure; others may pass."""


class FsspecEngine(Engine):
    """Reads bytes by ``cat_file``, which every filesystem of fsspec has.

    A filesystem of pyarrow is wrapped into one.
    """

    def __init__(self, filesystem: Any, protocol: str, timeout_s: float) -> None:
        if isinstance(filesystem, pafs.FileSystem):
            self.library = PYARROW_CLIENTS
            filesystem = _ArrowFiles(filesystem, skip_instance_cache=True)
        elif filesystem.async_impl and filesystem._pid != os.getpid():
            raise WorkerError(
                "this process was forked from the one that made the filesystem, which fsspec does "
                'not allow: start worker processes with multiprocessing_context="forkserver"'
            )
        super().__init__(timeout_s)
        self._filesystem = filesystem
        self.secrets = [getattr(filesystem, "storage_options", None)]
        self._protocol = protocol

    def status(self, path: str) -> DataFileInfo | None:
        def look() -> DataFileInfo | None:
            self._filesystem.invalidate_cache()
            info = self._filesystem.info(path)
            return self._status(path, info) if info["type"] == "file" else None

        return self._in_time(look)

    def entries(
        self, directory: str, recursive: bool, after: str = ""
    ) -> Iterator[DataFileInfo | str]:
        # A tree comes in one call, which may take any time.
        if recursive:
            found = self._filesystem.find(directory, detail=True)
            yield from (self._status(path, info) for path, info in found.items())
            return
        for info in self._filesystem.ls(directory, detail=True):
            path = self._url(info["name"])
            yield self._status(path, info) if info["type"] == "file" else path

    def fetch(self, file: DataFileInfo, start: int, stop: int) -> Any:
        """Return bytes of a file, and look at its version afterwards: no request can name it."""
        read = partial(self._filesystem.cat_file, file.path, start=start, end=stop)
        data, failed = None, None
        try:
            data = complete(self.call(partial(self._in_time, read, stop - start)), stop - start)
        except RequestError as error:
            failed = error
        # A filesystem that fails on a file that has changed did not fail. Errors are raised here,
        # and not above: they would hold that of the client, with the secrets in its text.
        if failed is None or failed.failure is StoreFailure.TRANSIENT:
            check_version(file, self.call(partial(self.status, file.path)))
        if failed is not None:
            raise failed
        return data

    def put(self, file: str, path: str) -> None:
        send = partial(self._filesystem.put_file, file, path)
        self._in_time(send, os.path.getsize(file))

    def delete(self, path: str) -> None:
        self._in_time(partial(self._filesystem.rm_file, path))

    def _failure(self, error: Exception) -> RequestError:
        return _request_error(error)

    def _status(self, path: str, info: Mapping[str, Any]) -> DataFileInfo:
        mark = next((info[key] for key in _MARKS if info.get(key) is not None), None)
        if isinstance(mark, datetime):  # some list with a number, and look up with a date
            mark = mark.timestamp()
        if info["size"] is None:
            raise RequestError(
                StoreFailure.REFUSED, "its size is not known, so parts cannot be read"
            )
        etag = None if mark is None else str(mark)
        return DataFileInfo(self._url(path), int(info["size"]), etag=etag)

    def _url(self, path: str) -> str:
        if "://" in path or not self._protocol:
            return path
        return f"{self._protocol}://{path.lstrip('/')}"


def _request_error(error: Exception) -> RequestError:
    """Return the error for an exception of a filesystem, which may be of any type."""
    detail = _detail(error)
    status = getattr(error, "status", getattr(error, "code", None))
    if isinstance(error, FileNotFoundError):
        return RequestError(StoreFailure.MISSING, detail)
    if isinstance(error, PermissionError) or any(word in detail for word in _DENIED):
        return RequestError(StoreFailure.DENIED, detail)
    if isinstance(status, int) and 400 <= status < 600:
        return RequestError.of_status(status, detail)
    if type(error).__name__.endswith("CredentialsError"):  # of botocore, and of Google's
        return RequestError(StoreFailure.DENIED, detail)
    # An SSLError is also a ValueError.
    mistaken = isinstance(error, (*_MISTAKES, *_NO_FILES)) and not isinstance(error, SSLError)
    return RequestError(StoreFailure.REFUSED if mistaken else StoreFailure.TRANSIENT, detail)


class _ArrowFiles(ArrowFSWrapper):  # type: ignore[misc]
    """A filesystem of pyarrow, which lists a whole tree at once.

    ``cat_file`` of some releases of fsspec ignores the range.
    """

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        assert start is not None
        assert end is not None
        with self.fs.open_input_file(path) as file:
            file.seek(start)
            return bytes(file.read(end - start))

    def find(self, path: str, *args: Any, **options: Any) -> dict[str, Any]:
        selector = pafs.FileSelector(path, allow_not_found=True, recursive=True)
        found = map(self._make_entry, self.fs.get_file_info(selector))
        return {info["name"]: info for info in found if info["type"] == "file"}


def filesystem_for(protocol: str, options: Mapping[str, Any]) -> Any:
    """Return fsspec's filesystem of a protocol.

    Raises:
        OptionError: The protocol is not known, or the options do not fit it.
        MissingExtraError: The filesystem needs a package that is not installed.
    """
    try:
        return fsspec.filesystem(protocol, **options)
    except ImportError as error:
        raise MissingExtraError(f"reading {protocol}:// needs another package: {error}") from None
    except Exception as error:  # filesystems raise what they like
        detail = _detail(error)
        raise OptionError(f"the filesystem for {protocol}:// cannot be made: {detail}") from None


def _detail(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
