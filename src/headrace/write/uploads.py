"""Files of this machine into a store, and objects out of it, with the store's own retries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.errors import ReadError, WriteError
from headrace.storage import (
    Engine,
    Failure,
    RemoteStore,
    RequestError,
    WritingEngine,
    interruptibly,
)

__all__ = ["delete", "put"]


def put(store: RemoteStore, path: Path, url: str) -> None:
    """Send a file; large ones go in pieces that become an object when all have arrived."""
    _ask(store, url, lambda engine: engine.put(str(path), url))


def delete(store: RemoteStore, url: str) -> None:
    """Remove an object."""
    _ask(store, url, lambda engine: engine.delete(url))


def _ask(store: RemoteStore, url: str, ask: Callable[[WritingEngine], None]) -> None:
    def request() -> None:
        store.connection.request(
            f"writing {url}", lambda engine: ask(_writing(engine)), store.meter, store.patience
        )

    try:
        interruptibly(request)
        return
    except RequestError as error:
        said = f"writing {url}: {error.detail}"
    except ReadError as error:
        said = str(error)
    raise WriteError(f"{said}; mend that and run the same again: it goes on where it stopped")


def _writing(engine: Engine) -> WritingEngine:
    if isinstance(engine, WritingEngine):
        return engine
    raise RequestError(Failure.REFUSED, f"{type(engine).__name__} only reads")
