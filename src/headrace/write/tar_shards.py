"""Samples into tars of a certain size, each of which appears with its index when it is whole."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from headrace.errors import OptionError
from headrace.options import parse_bytes
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.index_files import write_index_as
from headrace.write.durable import flush_directory
from headrace.write.failures import writing
from headrace.write.tar_shard import Member, Noting, OpenShard

__all__ = ["ShardLayout", "ShardReceipt", "Shards", "clear_unfinished"]

logger = logging.getLogger(__name__)

_ENDINGS = {"json": ".json", "arrow": ".idx.arrow"}
_PARTIAL = ".partial"
_UNFINISHED = re.compile(r"(.+?)(\.[0-9a-f]{12})?" + re.escape(_PARTIAL))
"""what a file is called while it is written"""
_TRIED_NUMBERS = (0, 1, 10, 123_456)


class ShardReceipt(TypedDict):
    """What is to be known of a tar that is whole; JSON."""

    name: str
    size_bytes: int
    samples: int
    index: str | None
    """the name of the file beside it"""
    index_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLayout:
    """How large tars are, what they are called, and what is noted of them."""

    shard_bytes: int | str = "1GiB"
    shard_samples: int | None = None
    pattern: str = "shard_{:05d}.tar"
    index: str | None = "json"
    noting: Noting = field(default_factory=Noting)

    def __post_init__(self) -> None:
        limit = parse_bytes("shard_bytes", self.shard_bytes)
        if limit < 1:
            raise OptionError(f"shard_bytes must be at least 1, not {self.shard_bytes!r}")
        object.__setattr__(self, "shard_bytes", limit)
        samples = self.shard_samples
        if samples is not None and (
            isinstance(samples, bool) or not isinstance(samples, int) or samples < 1
        ):
            raise OptionError(f"shard_samples must be an int of at least 1, not {samples!r}")
        if self.index is not None and self.index not in _ENDINGS:
            raise OptionError(f'index must be "json", "arrow" or None, not {self.index!r}')
        self._check_pattern()

    def _check_pattern(self) -> None:
        try:
            found = [self.number(self.name(number)) for number in _TRIED_NUMBERS]
        except (IndexError, KeyError, ValueError, AttributeError):
            found = []
        whole = self.pattern.endswith(".tar") and "/" not in self.pattern
        if found != [*_TRIED_NUMBERS] or not whole or self.pattern[0] in "._":
            raise OptionError(
                'pattern must be a name with one number, such as "shard_{:05d}.tar", not '
                f"{self.pattern!r}"
            )

    def name(self, shard: int) -> str:
        """Of a tar, by its number."""
        return self.pattern.format(shard)

    def index_name(self, tar: str) -> str | None:
        """Of the index of a tar."""
        return None if self.index is None else tar.removesuffix(".tar") + _ENDINGS[self.index]

    def index_names(self, tar: str) -> list[str]:
        """Of an index of a tar in any form."""
        return [tar.removesuffix(".tar") + ending for ending in _ENDINGS.values()]

    def number(self, name: str) -> int | None:
        """Of a tar of this name; None if none is called so."""
        shard = self._read_number(name)
        return shard if shard is not None and self.name(shard) == name else None

    def numbers(self, directory: Path) -> list[int]:
        """Of the tars that are there, sorted; an OptionError if one counts with other digits."""
        found = []
        for name in sorted(os.listdir(directory)):
            shard = self._read_number(name)
            if shard is not None and self.name(shard) != name:
                raise OptionError(
                    f"{directory} holds {name}, which the pattern {self.pattern!r} would call "
                    f"{self.name(shard)}; give the pattern that it was written with, or another "
                    "directory"
                )
            found += [] if shard is None else [shard]
        return sorted(found)

    def _read_number(self, name: str) -> int | None:
        """The one that stands where the pattern has it, with whatever digits."""
        before, _, rest = self.pattern.partition("{")
        _, _, after = rest.partition("}")
        found = re.fullmatch(re.escape(before) + r"([0-9]+)" + re.escape(after), name)
        return None if found is None else int(found[1])


def clear_unfinished(directory: Path, layout: ShardLayout) -> None:
    """Remove what a killed run left of tars that it was writing."""
    for path in directory.glob("*" + _PARTIAL):
        found = _UNFINISHED.fullmatch(path.name)
        name = found[1] if found else ""
        tars = (name.removesuffix(ending) + ".tar" for ending in (".tar", *_ENDINGS.values()))
        if any(layout.number(tar) is not None for tar in tars):
            path.unlink(missing_ok=True)


class Shards:
    """Puts samples into tars in a directory; a sample is never cut in two.

    A tar's index is there before the tar is: whoever sees one finds its own index beside it.
    """

    def __init__(
        self,
        directory: Path,
        layout: ShardLayout,
        *,
        first: int = 0,
        finished: Callable[[ShardReceipt], Any],
    ) -> None:
        self._directory = directory
        self._layout = layout
        self._following = first
        self._finished = finished
        self._shard: OpenShard | None = None

    def add(self, key: str, members: Sequence[Member]) -> None:
        """Append a sample, to another tar if it does not fit into this one."""
        more = OpenShard.room(members)
        if self._shard is not None and self._is_full(self._shard, more):
            self.finish()
        shard = self._shard = self._shard or self._begun()
        if key in shard.keys:
            name = self._layout.name(self._following)
            raise OptionError(
                f"the key {key!r} comes twice in {name}: its fields would be taken for those of "
                "one sample; give each sample a key of its own"
            )
        try:
            shard.add(key, members)
        except BaseException:
            self.abandon()
            raise

    def finish(self, *, at_least_one: bool = False) -> None:
        """End the tar that is open, if one is; else begin one if there was none at all."""
        shard, self._shard = self._shard, None
        if shard is None:
            if not at_least_one or self._following:
                return
            shard = self._begun()
        name = self._layout.name(self._following)
        try:
            index = shard.finish()
            written = self._write_index(name, index)
            self._remove_others(name, written)
        except BaseException:
            shard.abandon()
            raise
        if written is None and shard.own_captions:
            logger.warning(
                "%s has no index, which alone could hold %d captions: they are left out",
                name,
                shard.own_captions,
            )
        with writing(self._directory / name):
            os.replace(shard.path, self._directory / name)
            flush_directory(self._directory)
        self._following += 1
        self._finished(
            {
                "name": name,
                "size_bytes": shard.size,
                "samples": len(shard.keys),
                "index": None if written is None else written.name,
                "index_bytes": 0 if written is None else written.stat().st_size,
            }
        )

    def abandon(self) -> None:
        """Remove the tar that is open, if one is."""
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.abandon()

    def _begun(self) -> OpenShard:
        with writing(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
        name = self._layout.name(self._following)
        return OpenShard(self._directory / (name + _PARTIAL), self._layout.noting)

    def _is_full(self, shard: OpenShard, more: int) -> bool:
        layout = self._layout
        enough = layout.shard_samples is not None and len(shard.keys) >= layout.shard_samples
        return enough or shard.size_with(more) > int(layout.shard_bytes)

    def _write_index(self, tar: str, index: TarIndex) -> Path | None:
        name = self._layout.index_name(tar)
        if name is None:
            return None
        path = self._directory / name
        with writing(path):
            write_index_as(path, [(tar, index)])
        return path

    def _remove_others(self, tar: str, written: Path | None) -> None:
        """Indices in other forms, of a tar that had this name: readers would take them for its."""
        for name in self._layout.index_names(tar):
            path = self._directory / name
            if path != written:
                with writing(path):
                    path.unlink(missing_ok=True)
