"""Secrets of catalogs and stores, and a search of everything that is shown."""

from __future__ import annotations

import json
import logging
import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers.proxy import FaultProxy
from servers.rest_catalog import RestCatalogServer

MARK = "c4n4ry"
KEY = f"AKIA{MARK}KEY"
SECRET = f"{MARK}/se+cret=="
TOKEN = f"{MARK}.token_"


Serve = Callable[..., RestCatalogServer]
ProxyTo = Callable[..., FaultProxy]


@pytest.fixture(autouse=True)
def nothing_of_amazon_is_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


class Shown:
    """All that people, logs and files get to see."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, bytes]] = []

    def add(self, what: str, shown: Any) -> None:
        text = shown if isinstance(shown, bytes) else f"{shown}\n{shown!r}".encode()
        self.texts.append((what, text))

    def add_error(self, error: BaseException) -> None:
        self.add("traceback", "".join(traceback.format_exception(error)))
        seen: list[BaseException | None] = [None]
        waiting: list[BaseException | None] = [error]
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.append(one)
                self.add(type(one).__name__, one)
                self.add("attributes", vars(one))
                waiting += [one.__cause__, one.__context__]


class _Collecting(logging.Handler):
    def __init__(self, shown: Shown) -> None:
        super().__init__(logging.DEBUG)
        self._shown = shown

    def emit(self, record: logging.LogRecord) -> None:
        self._shown.add(f"log of {record.name}", f"{record.getMessage()} {record.exc_info!r}")


@pytest.fixture
def shown() -> Iterator[Shown]:
    """Fails a test that shows a canary; our logs are added by themselves."""
    collected = Shown()
    ours = [logging.getLogger(name) for name in ("headrace", "pyiceberg")]
    handler = _Collecting(collected)
    for logger in ours:
        logger.setLevel(logging.DEBUG)
        logger.addHandler(handler)
    yield collected
    for logger in ours:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)
    assert collected.texts
    leaks = [(what, text) for what, text in collected.texts if MARK.encode() in text]
    assert not leaks, "\n".join(f"{what}: {text!r}"[:1500] for what, text in leaks[:5])


def s3_words(url: str, **more: str) -> dict[str, str]:
    """How pyiceberg names what reaches a server, with canaries."""
    return {
        "s3.endpoint": url,
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.session-token": TOKEN,
        "s3.region": "us-east-1",
        **more,
    }


def look_at(shown: Shown, loader: Any, dataset: Any) -> None:
    state = loader.state_dict()
    shown.add("state", json.dumps(state).encode())
    found = dataset.epochs.found
    reader = found.reader
    for one in (loader, dataset, found, reader, reader.store, reader.source, dataset.files):
        shown.add(type(one).__name__, one)
    for one in (
        dataset.epochs.pipeline,
        dataset._table,
        dataset._options,
        vars(dataset.epochs.planner),
    ):
        shown.add(type(one).__name__, one)
    for one in (dataset._table._table, loader.stats(), dataset.splits):
        shown.add(type(one).__name__, one)
    shown.add("fingerprint", dataset.epochs.fingerprint)
    for one in (dataset.files, dataset.plan(), state):
        shown.add(f"pickle of {type(one).__name__}", pickle.dumps(one))
    shown.add("the copy in another process", pickle.loads(pickle.dumps(dataset)))
