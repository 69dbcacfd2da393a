"""What a shuffled copy can be written to, by name: files, or tables of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from headrace.errors import OptionError
from headrace.storage import Options

__all__ = [
    "Receipt",
    "TargetOptions",
    "TargetWriter",
    "make_target",
    "register_target",
    "target_kind",
]

Receipt = dict[str, Any]
"""what a target wants to know of a part when it commits: JSON, with the number of ``rows``"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """What a target is told when it is made."""

    location: str
    """an absolute path or a URL, without a slash at the end"""
    work_dir: Path
    """a directory of this machine for what is on its way"""
    overwrite: bool = False
    compression: str | None = None
    storage_options: Options = field(default_factory=dict, repr=False)


class TargetWriter(Protocol):
    """Takes a shuffled copy in numbered parts, and shows all of it at once, or nothing.

    Making one writes nothing. Work that was interrupted is gone on with by another process, with
    another writer for the same place.
    """

    def refuse(self, schema: pa.Schema) -> None:
        """Raise an OptionError if there is something already that must not be lost.

        Also if such columns cannot be written there. It is called before anything is read.
        """
        ...

    def write(
        self, part: int, parts: int, schema: pa.Schema, groups: Iterator[pa.Table]
    ) -> Receipt:
        """Write a part, which lasts when this returns; one that is there already is replaced.

        Each table is a row group, or whatever else the target reads as one.
        """
        ...

    def holds(self, receipt: Receipt, run: str) -> bool:
        """Whether a part that this run wrote before is still there, shown already or not."""
        ...

    def commit(
        self, schema: pa.Schema, receipts: Sequence[Receipt], facts: Mapping[str, Any]
    ) -> None:
        """Show all parts. Called again after a kill, it finishes or finds that it has finished.

        ``facts`` describe the copy; its ``run`` is unlike that of any other.
        """
        ...


Maker = Callable[[TargetOptions], TargetWriter]

_TARGETS: dict[str, str | Maker] = {
    "parquet": "headrace.write.files:parquet_files",
    "arrow": "headrace.write.files:arrow_files",
    "lance": "headrace.write.lance_table:LanceTable",
    "paimon": "headrace.write.paimon_table:PaimonTable",
}
_ENDINGS = {".lance": "lance", ".arrow": "arrow", ".parquet": "parquet"}


def register_target(name: str, maker: str | Maker) -> None:
    """Make a kind of target known; ``maker`` may be ``"module:function"``, imported when used."""
    _TARGETS[name] = maker


def target_kind(kind: str | None, location: str) -> str:
    """A kind of target; None: that which the ending of the location stands for, else Parquet."""
    if kind is None:
        return next((k for ending, k in _ENDINGS.items() if location.endswith(ending)), "parquet")
    if kind not in _TARGETS:
        raise OptionError(f"target_format must be one of {', '.join(_TARGETS)}, not {kind!r}")
    return kind


def make_target(kind: str, options: TargetOptions) -> TargetWriter:
    """The target of a kind."""
    maker = _TARGETS[kind]
    if isinstance(maker, str):
        module, _, name = maker.partition(":")
        found: Maker = getattr(import_module(module), name)
        return found(options)
    return maker(options)
