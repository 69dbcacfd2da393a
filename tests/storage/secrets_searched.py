"""Canaries that stand for secrets, and a search of everything that comes out."""

from __future__ import annotations

import gc
import json
import logging
import pickle
import traceback
import warnings
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from store_contract import ROWS, chain

from headrace import StructuredDataset

MARK = "c4n4ry"
KEY = f"AKIA{MARK}key"
SECRET = f"{MARK}/se+cret=="
TOKEN = f"{MARK}.token_"
PASSWORD = f"{MARK}:p@ss w/rd"
ACCOUNT_KEY = b64encode(f"{MARK} account key".encode()).decode()


def written(secret: str) -> set[str]:
    """How a secret may be written."""
    return {
        secret,
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        b64encode(secret.encode()).decode().rstrip("="),
        json.dumps(secret)[1:-1],
    }


CANARIES = {form for one in (SECRET, TOKEN, PASSWORD, ACCOUNT_KEY) for form in written(one)}
CANARIES |= {MARK, b64encode(f"me:{PASSWORD}".encode()).decode().rstrip("=")}


def found_in(output: bytes | str) -> set[str]:
    data = output.encode() if isinstance(output, str) else output
    return {canary for canary in CANARIES if canary.encode() in data}


class Output:
    """Everything that people, logs and files get to see; canaries in it fail the test."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes | str]] = []

    def add(self, what: str, output: Any) -> None:
        text = output if isinstance(output, bytes | str) else f"{output}\n{output!r}"
        self.seen.append((what, text))

    def add_error(self, error: BaseException) -> None:
        for one in chain(error):
            self.add(f"{type(one).__name__}", str(one))
            self.add(f"{type(one).__name__}, repr", repr(one))
            self.add(f"{type(one).__name__}, args", repr(one.args))
            self.add(f"{type(one).__name__}, attributes", repr(vars(one)))
        self.add("traceback", "".join(traceback.format_exception(error)))

    def add_folder(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            self.add("a path in the cache", str(path))
            if path.is_file():
                self.add(f"the content of {path.name}", path.read_bytes())

    def check(self) -> None:
        assert self.seen
        leaks = [(what, found_in(text), text) for what, text in self.seen if found_in(text)]
        assert not leaks, "\n".join(f"{what}: {text!r}"[:1500] for what, _, text in leaks[:5])


_WITH_LOGS_OF_REQUESTS = {"huggingface_hub", "httpcore2", "httpx2"}
"""Libraries that write all requests and answers into their logs, for those who ask for that."""


class Collecting(logging.Handler):
    def __init__(self, output: Output) -> None:
        super().__init__(logging.DEBUG)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        library = record.name.partition(".")[0]
        if library in _WITH_LOGS_OF_REQUESTS and record.levelno < logging.WARNING:
            return
        text = f"{record.getMessage()} {record.args!r} {record.exc_info!r}"
        self._output.add(f"log of {record.name}", text)


@pytest.fixture
def output(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Output]:
    """Collects logs of every logger at every level, warnings, and what is printed."""
    # The handler of huggingface_hub writes to the stderr of the test that imported it, which may
    # be closed by now, and logging would print the message with its arguments.
    monkeypatch.setattr(logging, "raiseExceptions", False)
    collected = Output()
    handler = Collecting(collected)
    loggers = [logging.root, *(logging.getLogger(name) for name in logging.root.manager.loggerDict)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    logging.root.addHandler(handler)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield collected
    logging.root.removeHandler(handler)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    gc.collect()
    for one in warned:
        collected.add("a warning", str(one.message))
    for printed in capfd.readouterr():
        collected.add("printed", printed)
    collected.check()


def look_at_everything(output: Output, path: Any, folder: Path, **options: Any) -> None:
    """Use all that there is, and collect all that it shows."""
    options.setdefault("num_workers", 0)
    cache = folder / "cache"
    loader, dataset = StructuredDataset.create_dataloader(
        path, batch_size=8, cache_dir=cache, retries=1, **options
    )
    steps = iter(loader)
    next(steps)
    state = loader.state_dict()
    assert sum(len(batch["id"]) for batch in steps) == ROWS - 8
    loader.load_state_dict(state)
    dataset.save_manifest(folder / "manifest")
    found = dataset.epochs.found
    for one in (loader, dataset, found, found.listing, found.reader, found.reader.store):
        output.add(type(one).__name__, one)
    output.add("pipeline", dataset.epochs.pipeline)
    output.add("planner", repr(vars(dataset.epochs.planner)))
    for value in (
        state,
        dataset.epochs.fingerprint,
        loader.stats(),
        list(dataset.files),
        dataset.splits,
    ):
        output.add(type(value).__name__, value)
    for value in (dataset.plan(), dataset.files, dataset.splits, state):
        output.add(f"pickle of {type(value).__name__}", pickle.dumps(value))
    output.add("manifest", (folder / "manifest").read_bytes())
    output.add_folder(cache)
    _, again = StructuredDataset.create_dataloader(
        path, manifest=folder / "manifest", **{**options, "num_workers": 0}
    )
    output.add("from a manifest", again)
