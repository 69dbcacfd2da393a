"""Any filesystem that fsspec knows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

import fsspec
from fsspec.asyn import sync
from fsspec.exceptions import FSTimeoutError

from headrace.errors import MissingExtraError, OptionError, WorkerError
from headrace.storage.engines.protocol import Failure, RequestError
from headrace.storage.fetching import within
from headrace.storage.pace import TooSlowError, longest_wait
from headrace.storage.store import FileStatus

__all__ = ["FsspecEngine", "filesystem_for"]

_MARKS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")


class FsspecEngine:
    """Bytes by ``cat_file``, which every filesystem of fsspec has."""

    conditional = False

    def __init__(self, filesystem: Any, protocol: str, timeout_s: float) -> None:
        if filesystem.async_impl and filesystem._pid != os.getpid():
            raise WorkerError(
                "this process was forked from the one that made the filesystem, which fsspec does "
                'not allow: start worker processes with multiprocessing_context="forkserver"'
            )
        self._filesystem = filesystem
        self.secrets = [getattr(filesystem, "storage_options", None)]
        self._protocol = protocol
        self._timeout_s = timeout_s

    def resolved(self, location: str) -> str:
        return location

    def status(self, path: str) -> FileStatus | None:
        with _translated():
            self._filesystem.invalidate_cache()
            info = self._ask(longest_wait(self._timeout_s), "info", path)
            return self._status(path, info) if info["type"] == "file" else None

    def entries(
        self, directory: str, recursive: bool, after: str = ""
    ) -> Iterator[FileStatus | str]:
        with _translated():
            if recursive:
                found = self._filesystem.find(directory, detail=True)
                yield from (self._status(path, info) for path, info in found.items())
            else:
                for info in self._filesystem.ls(directory, detail=True):
                    is_file = info["type"] == "file"
                    path = self._url(info["name"])
                    yield self._status(path, info) if is_file else path

    def fetch(
        self, path: str, start: int, stop: int, etag: str | None, size: int | None = None
    ) -> Any:
        with _translated():
            limit_s = longest_wait(self._timeout_s, stop - start)
            data = self._ask(limit_s, "cat_file", path, start=start, end=stop)
        if len(data) != stop - start:
            detail = f"{len(data)} bytes came, and not {stop - start}"
            raise RequestError(Failure.TRANSIENT, detail)
        return data

    def put(self, file: str, path: str) -> None:
        with _translated():
            self._filesystem.put_file(file, path)

    def delete(self, path: str) -> None:
        with _translated():
            self._filesystem.rm_file(path)

    def _ask(self, limit_s: float, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the filesystem, and give it up after ``limit_s`` seconds."""
        method = getattr(self._filesystem, name)
        inner = getattr(method, "__wrapped__", None)
        if name in vars(self._filesystem) and iscoroutinefunction(inner):
            # fsspec made the method of a coroutine, which it can also cancel.
            try:
                return sync(self._filesystem.loop, inner, *args, timeout=limit_s, **options)
            except FSTimeoutError:
                raise TooSlowError.after(limit_s) from None
        return within(limit_s, partial(method, *args, **options))

    def _status(self, path: str, info: Mapping[str, Any]) -> FileStatus:
        mark = next((info[key] for key in _MARKS if info.get(key) is not None), None)
        if isinstance(mark, datetime):  # some list with a number what they look at with a date
            mark = mark.timestamp()
        if info["size"] is None:
            raise RequestError(Failure.REFUSED, "its size is not known, so parts cannot be read")
        return FileStatus(self._url(path), int(info["size"]), None if mark is None else str(mark))

    def _url(self, path: str) -> str:
        if "://" in path or not self._protocol:
            return path
        return f"{self._protocol}://{path.lstrip('/')}"


def filesystem_for(protocol: str, options: Mapping[str, Any]) -> Any:
    """The filesystem of a protocol; a missing package or an unknown protocol is said clearly."""
    try:
        return fsspec.filesystem(protocol, **options)
    except ValueError as error:
        raise OptionError(f"no filesystem is known for {protocol}://: {error}") from None
    except TypeError as error:
        raise OptionError(f"storage_options do not fit {protocol}://: {error}") from None
    except ImportError as error:
        if protocol in ("gs", "gcs"):
            raise MissingExtraError(
                "an emulator of Google Cloud Storage is read by gcsfs, which is not installed; "
                "run: pip install gcsfs"
            ) from None
        raise MissingExtraError(f"reading {protocol}:// needs another package: {error}") from None
    except Exception as error:  # filesystems raise what they like
        detail = _detail(error)
        raise OptionError(f"the filesystem for {protocol}:// cannot be made: {detail}") from None


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise RequestError(Failure.MISSING, _detail(error)) from None
    except PermissionError as error:
        raise RequestError(Failure.DENIED, _detail(error)) from None
    except RequestError:
        raise
    except TooSlowError as error:
        raise RequestError(Failure.TRANSIENT, str(error)) from None
    except Exception as error:  # clients raise what they like
        raise RequestError.of_client(error, _detail(error)) from None


def _detail(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
