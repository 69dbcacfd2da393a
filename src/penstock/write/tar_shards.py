"""Samples into tars of a certain size, each of which appears with its index when it is whole."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from penstock.archives.tar.arrow_index import write_arrow_indexes
from penstock.archives.tar.index import TarIndex
from penstock.archives.tar.json_index import json_index
from penstock.errors import OptionError
from penstock.plan import parse_bytes
from penstock.write.durable import flush_directory, whole_file
from penstock.write.failures import writing
from penstock.write.tar_shard import Member, Noting, OpenShard

__all__ = ["ShardLayout", "ShardReceipt", "Shards", "clear_unfinished"]

_ENDINGS = {"json": ".json", "arrow": ".idx.arrow"}
_PARTIAL = ".partial"


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
            names = {self.pattern.format(0), self.pattern.format(1)}
        except (IndexError, KeyError, ValueError, AttributeError):
            names = set()
        whole = all(name.endswith(".tar") and "/" not in name for name in names)
        if len(names) < 2 or not whole or self.pattern[0] in "._" or self.pattern.count("{") > 1:
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

    def number(self, name: str) -> int | None:
        """Of a tar of this name; None if none is called so."""
        before, _, rest = self.pattern.partition("{")
        _, _, after = rest.partition("}")
        found = re.fullmatch(re.escape(before) + r"(\d+)" + re.escape(after), name)
        shard = None if found is None else int(found[1])
        return shard if shard is not None and self.name(shard) == name else None


def clear_unfinished(directory: Path, layout: ShardLayout) -> None:
    """Remove what a killed run left of tars that it was writing."""
    for path in directory.glob("*" + _PARTIAL):
        name = path.name.removesuffix(_PARTIAL)
        for ending in ("", *_ENDINGS.values()):
            tar = name.removesuffix(ending) + ".tar" if ending else name
            if layout.number(tar) is not None:
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
        except BaseException:
            shard.abandon()
            raise
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
            if self._layout.index == "arrow":
                write_arrow_indexes(str(path), [(tar, index)])
            else:
                with whole_file(path) as unfinished:
                    unfinished.write_bytes(json_index(index))
        return path
