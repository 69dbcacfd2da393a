"""Lance tables as targets: a part is some fragments, and a commit makes a version of all of
them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pyarrow as pa

from headrace.errors import MissingExtraError, OptionError
from headrace.storage import protocol_of
from headrace.write._copier import Receipt, TargetOptions
from headrace.write._places import not_empty, writing

_RUN = b"headrace.run"
_DATA = "data"
_FAILURES = (ValueError, RuntimeError)
_MOST_ROWS = 1 << 30
"""Largest number of rows of a file; with a larger limit Lance makes a file of every batch."""


@dataclass(frozen=True, slots=True)
class LanceTable:
    """A table at a path or URL; its earlier content stays available as an older version.

    Attributes:
        options: The location of the table.
        fragment_bytes: The size of a fragment at most; Lance notices every 8 MiB.
    """

    options: TargetOptions
    fragment_bytes: int = 1 << 50

    def __post_init__(self) -> None:
        _lance()
        if self.options.compression is not None:
            raise OptionError(
                "compression has no effect with Lance, which chooses it by itself; leave it out"
            )
        if callable(self.options.storage_options):
            raise OptionError("target_options must be a mapping for Lance")

    def refuse(self, schema: pa.Schema) -> None:
        location = self.options.location
        present = set(os.listdir(location)) if os.path.isdir(location) else set[str]()
        if self._existing() is None:
            if present - {_DATA}:  # which may hold fragments of work that was given up
                raise OptionError(f"{location} is not empty and not a Lance table")
            return
        if not self.options.overwrite:
            raise not_empty(location, "write a new version of that table")

    def write(
        self, part: int, parts: int | None, schema: pa.Schema, groups: Iterator[pa.Table]
    ) -> Receipt:
        batches = (batch for group in groups for batch in group.to_batches())
        with writing(self.options.location, *_FAILURES):
            fragments = _lance().fragment.write_fragments(
                pa.RecordBatchReader.from_batches(schema, batches),
                self.options.location,
                mode="create" if self._existing() is None else "overwrite",
                max_rows_per_file=_MOST_ROWS,
                max_bytes_per_file=self.fragment_bytes,
                storage_options=self._storage_options,
            )
        rows = sum(fragment.physical_rows for fragment in fragments)
        return {"rows": rows, "fragments": [fragment.to_json() for fragment in fragments]}

    def holds(self, receipt: Receipt, run: str) -> bool:
        if protocol_of(self.options.location):
            return True
        files = [file["path"] for one in receipt["fragments"] for file in one["files"]]
        return all(os.path.exists(f"{self.options.location}/{_DATA}/{name}") for name in files)

    def commit(
        self, schema: pa.Schema, receipts: Sequence[Receipt], facts: Mapping[str, Any]
    ) -> None:
        run = facts["run"].encode()
        existing = self._existing()
        if existing is not None and (existing.schema.metadata or {}).get(_RUN) == run:
            return
        lance = _lance()
        fragments = [
            lance.FragmentMetadata.from_json(json.dumps(fragment))
            for receipt in receipts
            for fragment in receipt["fragments"]
        ]
        marked = schema.with_metadata({**(schema.metadata or {}), _RUN: run})
        with writing(self.options.location, *_FAILURES):
            lance.LanceDataset.commit(
                self.options.location,
                lance.LanceOperation.Overwrite(marked, fragments),
                storage_options=self._storage_options,
            )

    @property
    def _storage_options(self) -> dict[str, str] | None:
        given = self.options.storage_options
        assert isinstance(given, Mapping)
        return dict(given) or None

    def _existing(self) -> Any:
        """Return the existing table, or None."""
        try:
            return _lance().dataset(self.options.location, storage_options=self._storage_options)
        except ValueError:  # Lance raises this if there is no table
            return None

    def write_beside(self, name: str, rows: pa.Table) -> None:
        """Write a small table into the folder of this one."""
        place = f"{self.options.location}/{name}"
        with writing(place, *_FAILURES):
            _lance().write_dataset(
                rows, place, mode="overwrite", storage_options=self._storage_options
            )


def _lance() -> ModuleType:
    try:
        import lance
        import lance.fragment
    except ImportError:
        raise MissingExtraError.for_extra("lance", "pylance") from None
    module: ModuleType = lance
    return module
