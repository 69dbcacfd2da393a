"""What the entries of a JSON index say under a key, as a column."""

from __future__ import annotations

from collections.abc import Iterator, Set
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import StaleIndexError
from penstock.model import Int64Array

__all__ = ["Entries", "Repeated"]

BoolArray = npt.NDArray[np.bool_]

_PLACE = ("offset", "length", "size")


class Repeated(dict[str, Any]):
    """A JSON object some of whose keys come more than once; the last of them counts."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


class Entries:
    """Names and entries of members, in step, in the order of the text.

    Entries are taken apart in the order in which they lie in memory, those that have the same
    keys at once: there are few such groups, and many entries. ``odd`` marks entries of which
    columns do not say all that they say, or say more.
    """

    def __init__(self, names: list[str], entries: list[dict[str, Any]], shown: str) -> None:
        self.names, self.entries, self._shown = names, entries, shown
        if set(map(type, entries)) - {dict}:
            self._plain()
        self._groups = _groups(entries)
        self.keys: set[str] = set().union(*(columns for _, columns in self._groups))
        self.odd = np.zeros(len(names), bool)

    def _plain(self) -> None:
        """Entries as plain objects; one that says twice where its member lies is refused."""
        for place, entry in enumerate(self.entries):
            if not isinstance(entry, dict):
                self.refuse(place, "its entry is no JSON object")
            if isinstance(entry, Repeated):
                keys = [key for key, _ in entry.pairs]
                twice = [key for key in _PLACE if keys.count(key) > 1]
                if twice:
                    self.refuse(place, f"its entry says {twice[0]} more than once")
        self.entries = list(map(dict, self.entries))

    def __len__(self) -> int:
        return len(self.names)

    def parts(self, key: str) -> Iterator[tuple[Int64Array, list[Any]]]:
        """The places of entries that say anything under a key, and what."""
        for places, columns in self._groups:
            if key in columns:
                yield places, columns[key]

    def present(self, key: str) -> BoolArray:
        """Which entries say anything under a key, and be it null."""
        there = np.zeros(len(self), bool)
        for places, _ in self.parts(key):
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
        for places, values in self.parts(key):
            types = set(map(type, values))
            if missing is not None and type(None) in types:
                self.odd[places] |= np.array([value is None for value in values], bool)
                places = places[[value is not None for value in values]]
                values = [value for value in values if value is not None]
            if floats and float in types:
                values = [_as_integer(value) for value in values]
            column = _integers(values, below)
            if column is None:
                wrong = next(i for i, v in enumerate(values) if not _is_number(v, below))
                self.refuse(places[wrong], f"{key} is {_cut_short(values[wrong])}")
            numbers[places] = column
        if missing is None and (numbers < 0).any():
            self.refuse(int(np.argmax(numbers < 0)), f"its entry has no {key}")
        return numbers

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
            "one of a tar; make it anew with: penstock index"
        )


def _groups(entries: list[dict[str, Any]]) -> list[tuple[Int64Array, dict[str, list[Any]]]]:
    """The places of entries with the same keys in the same order, and what is under each."""
    shapes = list(map(tuple, entries))
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return [(np.arange(len(entries)), _columns(shapes[0], entries))]
    numbers = {shape: number for number, shape in enumerate(dict.fromkeys(shapes))}
    codes = np.fromiter(map(numbers.__getitem__, shapes), np.int64, len(shapes))
    order = np.argsort(codes, kind="stable")
    edges = np.cumsum(np.bincount(codes, minlength=len(numbers)))[:-1]
    groups = []
    for shape, places in zip(numbers, np.split(order, edges), strict=bool(entries)):
        group = [entries[place] for place in places.tolist()]
        groups.append((places, _columns(shape, group)))
    return groups


def _columns(keys: tuple[str, ...], group: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """What entries that have these keys, in this order, say under each."""
    flat = list(chain.from_iterable(map(dict.values, group)))
    return {key: flat[number :: len(keys)] for number, key in enumerate(keys)}


def _integers(values: list[Any], below: int) -> Int64Array | None:
    """Numbers that are not negative and below a limit; None if some are not such."""
    if set(map(type, values)) - {int}:
        return None
    try:
        column = np.array(values, np.int64)
    except OverflowError:
        return None
    return column if not len(column) or 0 <= column.min() <= column.max() < below else None


def _is_number(value: object, below: int) -> bool:
    return type(value) is int and 0 <= value < below


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
