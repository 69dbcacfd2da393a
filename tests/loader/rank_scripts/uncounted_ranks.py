"""Ranks that continue where rows are not counted, and their warnings."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace import HeadraceError, StructuredDataset

Case = tuple[Path, Any, dict[str, Any]]
"""a folder, a state or None, and options"""


def read_all(rank: int, cases: Mapping[str, Case]) -> dict[str, Any]:
    """Return this rank's batches, warnings and state, or the message of an error, for each case."""
    return {name: _read(*case) for name, case in cases.items()}


def _read(folder: Path, state: Any, options: dict[str, Any]) -> Any:
    warned = _Warnings()
    logging.getLogger("headrace").addHandler(warned)
    try:
        loader, _ = StructuredDataset.create_dataloader(folder, num_workers=0, **options)
        if state is not None:
            loader.load_state_dict(state)
        batches: Sequence[list[int]] = [batch["id"].tolist() for batch in loader]
        return batches, warned.text, loader.state_dict()["epoch"], loader.stats()["padded"]
    except HeadraceError as error:
        return str(error)
    finally:
        logging.getLogger("headrace").removeHandler(warned)


class _Warnings(logging.Handler):
    """A handler that keeps the log messages."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"
