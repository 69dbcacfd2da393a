"""What the entries of a JSON index say under a key, as a column."""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import suppress
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import StaleIndexError
from headrace.model import Int64Array, computed_once

__all__ = ["Entries", "Repeated"]

BoolArray = npt.NDArray[np.bool_]
Column = list[Any] | Int64Array | npt.NDArray[np.float64]

_PLACE = ("offset", "length", "size")


class Repeated(dict[str, Any]):
    """A JSON object some of whose keys come more than once; the last of them counts."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


class Entries:
    """What the entries of members say, in the order of the text.

    Entries are taken apart as they are added, in the order in which they lie in memory, those
    that have the same keys at once: there are few such groups, and many entries. All are added
    before anything is asked.
    """

    def __init__(self, shown: str) -> None:
        self.names: list[str] = []
        self.keys: set[str] = set()
        self._shown = shown
        self._groups: list[tuple[Int64Array, dict[str, Column]]] = []

    def add(self, names: list[str], entries: list[Any]) -> None:
        """More entries, and the names of their members."""
        first = len(self.names)
        self.names += names
        if set(map(type, entries)) - {dict}:
            entries = self._plain(first, entries)
        for places, columns in _groups(entries):
            self.keys |= columns.keys()
            self._groups.append((first + places, columns))

    def _plain(self, first: int, entries: list[Any]) -> list[dict[str, Any]]:
        """Entries as plain objects; one that says twice where its member lies is refused."""
        for place, entry in enumerate(entries, first):
            if not isinstance(entry, dict):
                self.refuse(place, "its entry is no JSON object")
            if isinstance(entry, Repeated):
                keys = [key for key, _ in entry.pairs]
                twice = [key for key in _PLACE if keys.count(key) > 1]
                if twice:
                    self.refuse(place, f"its entry says {twice[0]} more than once")
        return list(map(dict, entries))

    def __len__(self) -> int:
        return len(self.names)

    @computed_once
    def odd(self) -> BoolArray:
        """Which entries columns do not say all of, or say more of."""
        return np.zeros(len(self), bool)

    @computed_once
    def _rows(self) -> tuple[Int64Array, Int64Array]:
        """The group of each entry, and the place in it."""
        group, row = np.empty((2, len(self)), np.int64)
        for number, (places, _) in enumerate(self._groups):
            group[places], row[places] = number, np.arange(len(places))
        return group, row

    def entries(self, places: Int64Array) -> Iterator[dict[str, Any]]:
        """Some entries as they were added."""
        group, row = (numbers[places].tolist() for numbers in self._rows)
        for number, at in zip(group, row, strict=True):
            columns = self._groups[number][1]
            yield {key: _plain_value(column[at]) for key, column in columns.items()}

    def parts(self, key: str) -> Iterator[tuple[Int64Array, list[Any]]]:
        """The places of entries that say anything under a key, and what."""
        for places, column in self.columns(key):
            yield places, column if isinstance(column, list) else column.tolist()

    def columns(self, key: str) -> Iterator[tuple[Int64Array, Column]]:
        """The same, where it is all integers of 64 bits, or all floats, as an array."""
        for places, columns in self._groups:
            if key in columns:
                yield places, columns[key]

    def present(self, key: str) -> BoolArray:
        """Which entries say anything under a key, and be it null."""
        there = np.zeros(len(self), bool)
        for places, _ in self.columns(key):
            there[places] = True
        return there

    def beyond(self, words: Set[str | None]) -> BoolArray:
        """Which entries have other keys than these."""
        other = np.zeros(len(self), bool)
        for places, columns in self._groups:
            other[places] = not columns.keys() <= words
        return other

    def integers(
        self, key: str, *, missing: int | None = None, below: int = 2**63, floats: bool = False
    ) -> Int64Array:
        """Numbers that are not negative; ``missing`` where there is none, if that may be.

        With ``floats`` 512.0 is 512.
        """
        numbers = np.full(len(self), -1 if missing is None else missing, np.int64)
        for places, column in self.columns(key):
            if not _in_range(column, below):
                values: list[Any] = column if isinstance(column, list) else column.tolist()
                if missing is not None:
                    there = np.array([value is not None for value in values], bool)
                    self.odd[places] |= ~there
                    places, values = places[there], [v for v in values if v is not None]
                column = self._checked(key, places, values, below, floats)
            numbers[places] = column
        if missing is None and (numbers < 0).any():
            self.refuse(int(np.argmax(numbers < 0)), f"its entry has no {key}")
        return numbers

    def _checked(
        self, key: str, places: Int64Array, values: list[Any], below: int, floats: bool
    ) -> list[int]:
        """Numbers of which some are not integers of 64 bits, or not in range, unless they are."""
        if floats:
            values = [_as_integer(value) for value in values]
        for place, value in zip(places, values, strict=True):
            if not (type(value) is int and 0 <= value < below):
                self.refuse(place, f"{key} is {_cut_short(value)}")
        return values

    def texts(self, key: str) -> pa.StringArray:
        """Strings; null, and odd, where there is anything else."""
        texts = np.full(len(self), None, object)
        for places, values in self.parts(key):
            if set(map(type, values)) - {str}:
                self.odd[places] |= np.array([type(value) is not str for value in values], bool)
                values = [value if type(value) is str else None for value in values]
            texts[places] = values
        return self.strings(texts.tolist())

    def strings(self, values: list[str | None]) -> pa.StringArray:
        """An array of texts in step with the members."""
        try:
            return pa.array(values, pa.string())
        except UnicodeEncodeError:
            place = next(i for i, v in enumerate(values) if v is not None and not _is_text(v))
            self.refuse(place, f"{values[place]!r} is no Unicode text")

    def refuse(self, place: int, why: str) -> NoReturn:
        """Say of a member what cannot be."""
        raise StaleIndexError(
            f"{self._shown}: member {self.names[place]!r}: {why}: the index is damaged, or not "
            "one of a tar; make it anew with: headrace index"
        )


def _groups(entries: list[dict[str, Any]]) -> Iterator[tuple[Int64Array, dict[str, Column]]]:
    """The places of entries with the same keys in the same order, and what is under each."""
    keys = tuple(entries[0]) if entries else ()
    # No key comes twice in an entry, so that none can hold more than one round of these.
    if list(chain.from_iterable(entries)) == list(keys) * len(entries):
        yield np.arange(len(entries)), _columns(keys, entries)
        return
    shapes = list(map(tuple, entries))
    numbers = {shape: number for number, shape in enumerate(dict.fromkeys(shapes))}
    codes = np.fromiter(map(numbers.__getitem__, shapes), np.int64, len(shapes))
    order = np.argsort(codes, kind="stable")
    edges = np.cumsum(np.bincount(codes, minlength=len(numbers)))[:-1]
    for shape, places in zip(numbers, np.split(order, edges), strict=True):
        yield places, _columns(shape, [entries[place] for place in places.tolist()])


def _columns(keys: tuple[str, ...], group: list[dict[str, Any]]) -> dict[str, Column]:
    """What entries that have these keys, in this order, say under each."""
    flat = list(chain.from_iterable(map(dict.values, group)))
    return {key: _column(flat[number :: len(keys)]) for number, key in enumerate(keys)}


def _column(values: list[Any]) -> Column:
    types = set(map(type, values))
    if types == {float}:
        return np.array(values, np.float64)
    if types == {int}:
        with suppress(OverflowError):
            return np.array(values, np.int64)
    return values


def _in_range(column: Column, below: int) -> bool:
    """Whether these are integers, not negative and below a limit."""
    if isinstance(column, list) or column.dtype != np.int64:
        return False
    return bool(column.min() >= 0 and column.max() < below)


def _plain_value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _as_integer(value: object) -> object:
    return int(value) if type(value) is float and value.is_integer() else value


def _cut_short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) < 80 else shown[:80] + "..."


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
