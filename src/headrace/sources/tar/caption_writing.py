"""Captions put into the index files of tars, in place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import NothingFoundError, OptionError
from headrace.sources.tar.arrow_index import ArrowIndexes, write_arrow_indexes
from headrace.sources.tar.captions import Captions, is_captions
from headrace.sources.tar.embedded import marked_as_written
from headrace.sources.tar.grouping import sample_keys
from headrace.sources.tar.index import SIDECARS, TarIndex
from headrace.sources.tar.json_form import (
    ABSENT,
    JsonForm,
    difference,
    entry_texts,
    json_sidecars,
    overlaid,
)
from headrace.sources.tar.json_index import json_index, read_json_index
from headrace.sources.tar.replacing import replaced_file, turn_in_folder

__all__ = ["with_captions_of", "write_captions"]

_ARROW = b"ARROW1"
_SHOWN = 5


def write_captions(
    index: str | os.PathLike[str],
    captions: Mapping[str, Captions],
    *,
    tar: str | None = None,
) -> int:
    """Put captions into an index file, JSON or columnar, by the names of members or sample keys.

    A key means the member that its sample is about; sidecars get no captions. The old singular
    key of what is updated goes. The file changes in one step, and processes that write captions
    into it take turns. ``tar`` says which tar is meant where a columnar index holds several that
    have the same names. Returns the number of members that were updated. A name that no member
    or sample has is an OptionError, and nothing is written.
    """
    path = os.fspath(index)
    if "://" in path:
        raise OptionError(f"captions are written into files of this machine, not {path}")
    for name, value in captions.items():
        if not isinstance(name, str):
            raise OptionError(f"captions go by names of members or keys of samples, not {name!r}")
        if not is_captions(value):
            raise OptionError(f"the captions of {name!r} must be a string or a list of strings")
    with _turn(path):
        tars, in_columns = _indexes(path)
        chosen = [number for number, (name, _) in enumerate(tars) if tar in (None, name)]
        if not chosen:
            raise OptionError(
                f"{path} is no index of {tar!r}, but of {_some([t for t, _ in tars])}"
            )
        places = _places([tars[number][1] for number in chosen], captions, path)
        for number, found in zip(chosen, places, strict=True):
            if found:
                name, old = tars[number]
                tars[number] = name, marked_as_written(_with_captions(old, found))
        if in_columns:
            write_arrow_indexes(path, tars)
        else:
            with replaced_file(path) as file:
                file.write(json_index(tars[0][1]))
    return sum(map(len, places))


@contextmanager
def _turn(path: str) -> Iterator[None]:
    """Wait until nobody else changes indices in the folder of this one."""
    if os.path.isdir(path):
        raise OptionError(f"{path} is a folder; captions are written into one index file")
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise NothingFoundError(f"{path} does not exist")
    with turn_in_folder(folder):
        yield


def _indexes(path: str) -> tuple[list[tuple[str, TarIndex]], bool]:
    """The indices in a file with the tars that they are of, and whether they are columnar."""
    try:
        with open(path, "rb") as file:
            if file.read(len(_ARROW)) != _ARROW:
                file.seek(0)
                return [(path, read_json_index(file.read(), path))], False
    except FileNotFoundError:
        raise NothingFoundError(f"{path} does not exist") from None
    opened = ArrowIndexes.open(path, path)
    return [(tar, opened.index(number)) for number, tar in enumerate(opened.tars)], True


def _places(
    indexes: Sequence[TarIndex], captions: Mapping[str, Captions], path: str
) -> list[dict[int, str]]:
    """The members of each index that get captions, and those as JSON."""
    found: list[dict[int, str]] = [{} for _ in indexes]
    names = list(captions)
    tars_of: dict[str, list[int]] = {name: [] for name in names}
    for number, index in enumerate(indexes):
        for name, members in _meant(index, names).items():
            text = json.dumps(captions[name])
            found[number].update((member, text) for member in members)
            tars_of[name].append(number)
    unknown = [name for name, numbers in tars_of.items() if not numbers]
    if unknown:
        raise OptionError(
            f"{path} has no member or sample {_some(unknown)} ({len(unknown)} of {len(names)} are "
            f"unknown; its members are called like {_some(_first_names(indexes))}); nothing was "
            "written"
        )
    doubtful = [name for name, numbers in tars_of.items() if len(numbers) > 1]
    if doubtful:
        raise OptionError(
            f"{path} has {_some(doubtful)} in more than one tar; say which is meant (tar=...); "
            "nothing was written"
        )
    return found


def _meant(index: TarIndex, names: Sequence[str]) -> dict[str, list[int]]:
    """The members that are called so, or else are what samples of that key are about."""
    primary = index.primary_members
    meant = _called(index.names, np.arange(len(index)), names)
    keys = sample_keys(index.names).take(pa.array(primary))
    meant |= _called(keys, primary, [name for name in names if name not in meant])
    for name, members in meant.items():
        _refuse_sidecars(index, name, members)
    return meant


def _called(
    column: pa.StringArray, members: npt.NDArray[np.integer[Any]], names: Sequence[str]
) -> dict[str, list[int]]:
    """Of members and what they are called, those that are called so."""
    hits = pc.is_in(column, pa.array(names, pa.string())).to_numpy(zero_copy_only=False)
    found: dict[str, list[int]] = {}
    for name, member in zip(column.filter(hits).to_pylist(), members[hits].tolist(), strict=True):
        found.setdefault(name, []).append(member)
    return found


def _refuse_sidecars(index: TarIndex, name: str, members: Sequence[int]) -> None:
    grouping = index.grouping
    for member in members:
        sample, field = int(grouping.samples[member]), int(grouping.fields[member])
        if sample < 0 or index.primary_members[sample] == member:
            continue
        if grouping.field_names[field].rpartition(".")[2] in SIDECARS:
            about = index.name(int(index.primary_members[sample]))
            raise OptionError(
                f"{name!r} is a sidecar of {about!r}; captions are written to that; nothing was "
                "written"
            )


def with_captions_of(later: TarIndex, index: TarIndex) -> TarIndex:
    """An index with the captions that another one of the same tar has."""
    if later.captions is None:
        return index
    said = zip(
        later.names.to_pylist(), later.offsets.tolist(), later.captions.to_pylist(), strict=True
    )
    texts = {(name, offset): text for name, offset, text in said if text is not None}
    members = enumerate(zip(index.names.to_pylist(), index.offsets.tolist(), strict=True))
    found = {member: texts[at] for member, at in members if at in texts}
    return marked_as_written(_with_captions(index, found)) if found else index


def _with_captions(index: TarIndex, found: Mapping[int, str]) -> TarIndex:
    index = _in_plural(index)
    captions = [None] * len(index) if index.captions is None else index.captions.to_pylist()
    extras = [None] * len(index) if index.extras is None else index.extras.to_pylist()
    for member, text in found.items():
        captions[member] = text
        extras[member] = _without_captions(extras[member])
    column = pa.array(extras, pa.string())
    return replace(
        index,
        captions=pa.array(captions, pa.string()),
        extras=None if column.null_count == len(column) else column,
    )


def _without_captions(extras: str | None) -> str | None:
    """Extras without what they say of the captions of an entry under either key."""
    if extras is None:
        return None
    changes = json.loads(extras)
    absent = [key for key in changes.pop(ABSENT, ()) if key != "captions"]
    rest = {key: value for key, value in changes.items() if key not in ("caption", "captions")}
    if absent:
        rest[ABSENT] = absent
    return json.dumps(rest) if rest else None


def _in_plural(index: TarIndex) -> TarIndex:
    """The same in a form whose captions are under the canonical key; extras keep singular ones."""
    form = JsonForm.of(index)
    if form.caption_key == "captions":
        return index
    plural = replace(form, caption_key="captions")
    members, sidecars = np.arange(len(index)), json_sidecars(index)
    extras = [None] * len(index) if index.extras is None else index.extras.to_pylist()
    old, new = (entry_texts(index, choice, sidecars, members) for choice in (form, plural))
    reworded = [
        difference(json.loads(after), overlaid(json.loads(before), extra))
        for before, after, extra in zip(old, new, extras, strict=True)
    ]
    facts = replace(index.facts, form=plural.text())
    return replace(index, extras=pa.array(reworded, pa.string()), facts=facts)


def _first_names(indexes: Sequence[TarIndex]) -> list[str]:
    return [name for index in indexes for name in index.names[:_SHOWN].to_pylist()]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return shown + (", ..." if len(names) > _SHOWN else "")
