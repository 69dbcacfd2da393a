"""Names of many tars in one: ``shard-{0000..0127}.tar``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import prod

from headrace.errors import OptionError

__all__ = ["without_braces"]

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST = 1_000_000


def without_braces(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> str | os.PathLike[str] | Sequence[str | os.PathLike[str]]:
    """The source with all that ranges in braces stand for; as it is, if there are none.

    ``{000..127}`` has numbers of three digits. A file whose name has braces is itself.
    """
    if isinstance(source, str | os.PathLike):
        named = os.fspath(source)
        return list(_each(named)) if _has_ranges(named) else source
    if not isinstance(source, Sequence) or not any(map(_has_ranges, source)):
        return source
    return [one for named in source for one in (_each(named) if _has_ranges(named) else [named])]


def _has_ranges(named: object) -> bool:
    path = os.fspath(named) if isinstance(named, str | os.PathLike) else None
    return isinstance(path, str) and bool(_RANGE.search(path)) and not os.path.exists(path)


def _each(named: str | os.PathLike[str]) -> Iterator[str]:
    texts = _RANGE.split(os.fspath(named))
    ranges = [_Range(*pair) for pair in zip(texts[1::3], texts[2::3], strict=True)]
    count = prod(len(one.numbers) for one in ranges)
    if count > _MOST:
        raise OptionError(f"{named} stands for {count:,} tars; {_MOST:,} can be named at most")
    for chosen in product(*(one.numbers for one in ranges)):
        parts = map(_Range.shown, ranges, chosen)
        yield "".join(chain.from_iterable(zip(texts[::3], [*parts, ""], strict=True)))


@dataclass(frozen=True, slots=True)
class _Range:
    first: str
    last: str

    @property
    def numbers(self) -> range:
        start, stop = int(self.first), int(self.last)
        return range(start, stop + 1) if start <= stop else range(start, stop - 1, -1)

    def shown(self, number: int) -> str:
        is_padded = any(len(one) > 1 and one.startswith("0") for one in (self.first, self.last))
        return str(number).zfill(max(len(self.first), len(self.last)) if is_padded else 0)
