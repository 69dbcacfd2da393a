"""Files of this machine into a store, and objects out of it, with the store's own retries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import ReadError, WriteError
from penstock.storage import RemoteStore
from penstock.storage.engines import Engine, Failure, RequestError
from penstock.storage.engines.fsspec import FsspecEngine
from penstock.storage.engines.objects import StoreEngine
from penstock.storage.fetching import interruptibly

__all__ = ["delete", "put"]

_STATUS = re.compile(r"status code: (\d{3})")


def put(store: RemoteStore, path: Path, url: str) -> None:
    """Send a file; large ones go in pieces that become an object when all have arrived."""
    _ask(store, url, lambda engine: _put(engine, path, url))


def delete(store: RemoteStore, url: str) -> None:
    """Remove an object."""
    _ask(store, url, lambda engine: _delete(engine, url))


def _ask(store: RemoteStore, url: str, ask: Callable[[Engine], None]) -> None:
    def request() -> None:
        store.connection.request(f"writing {url}", ask, store.meter, store.patience)

    try:
        interruptibly(request)
        return
    except RequestError as error:
        said = f"writing {url}: {error.detail}"
    except ReadError as error:
        said = str(error)
    raise WriteError(f"{said}; mend that and run the same again: it goes on where it stopped")


def _put(engine: Engine, path: Path, url: str) -> None:
    with _translated():
        if isinstance(engine, StoreEngine):
            import obstore

            store, key, _ = engine._place(url)
            obstore.put(store, key, path)
        else:
            _filesystem(engine).put_file(str(path), url)


def _delete(engine: Engine, url: str) -> None:
    with _translated():
        if isinstance(engine, StoreEngine):
            import obstore

            store, key, _ = engine._place(url)
            obstore.delete(store, key)
        else:
            _filesystem(engine).rm_file(url)


def _filesystem(engine: Engine) -> Any:
    if not isinstance(engine, FsspecEngine):
        raise RequestError(Failure.REFUSED, f"{type(engine).__name__} only reads")
    return engine._filesystem


@contextmanager
def _translated() -> Iterator[None]:
    """Whatever clients raise as RequestErrors, by the status that their text tells."""
    try:
        yield
    except RequestError:
        raise
    except PermissionError as error:
        raise RequestError(Failure.DENIED, _detail(error)) from None
    except FileNotFoundError as error:
        raise RequestError(Failure.MISSING, _detail(error)) from None
    except Exception as error:  # clients raise what they like
        found = _STATUS.search(str(error))
        if found is not None:
            raise RequestError.of_status(int(found[1]), _detail(error)) from None
        raise RequestError(Failure.TRANSIENT, _detail(error)) from None


def _detail(error: BaseException) -> str:
    text = str(error).partition("\n\nDebug source:")[0]
    return f"{type(error).__name__}: {' '.join(text.split())}"
