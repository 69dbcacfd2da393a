"""What an index says of a tar beyond its headers: whether it is of this tar, and what is kept."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model import DataFileInfo, Int64Array
from headrace.sources.tar.index import SIDECARS, TarIndex
from headrace.sources.tar.json_entries import NAME_KEYS
from headrace.sources.tar.json_form import ABSENT, overlaid
from headrace.sources.tar.json_places import PLACE_KEYS
from headrace.sources.tar.sidecars import LONGEST_SIDECAR, with_sidecars
from headrace.storage import Store, will_read

__all__ = ["Compared", "compared", "marked_as_written", "with_words_of"]

_LOOKED_AT = 8
_TEXT_FIELDS = tuple(sorted(SIDECARS - {"json", "cls"}))
_WRITTEN = "captions_written"
"""says of a tar that has captions in files of text that its index may have others"""
_OF_COLUMNS = {"offset", "length", "size", "sha256", "width", "height", "aspect", "json_metadata"}
_OF_COLUMNS |= {"caption", "captions", *NAME_KEYS, *PLACE_KEYS, ABSENT}
_OF_FACTS = {"filesize", "hash", "hash_lfs", "includes_image_geometry", "last_good"}
_OF_FACTS |= {"no_end_mark", ABSENT}


@dataclass(frozen=True, slots=True)
class Compared:
    """What an index embeds, beside what the sidecars in a tar say."""

    other_json: bool = False
    """some JSON is another"""
    other_texts: bool = False
    """no caption is that of its text file, and nobody is known to have written others"""
    lacking: bool = False
    """something is not embedded"""


def compared(store: Store, file: DataFileInfo, index: TarIndex) -> Compared:
    """Compare a few sidecars in a tar with what its index embeds of them."""
    members = _with_sidecars(index)
    if not len(members):
        return Compared()
    some = TarIndex(
        index.names.take(pa.array(members)), index.offsets[members], index.sizes[members]
    )
    said = with_sidecars(some, _payloads(store, file, some), file.path)
    return _compared(_taken(index, members), said)


def _with_sidecars(index: TarIndex) -> Int64Array:
    """All members of a few samples that have sidecars, from the first to the last."""
    has = np.zeros(index.num_samples, bool)
    for field in ("json", *_TEXT_FIELDS):
        sidecars = index.members_as(field)
        has |= (sidecars >= 0) & (sidecars != index.primary_members)
    having = np.flatnonzero(has)
    if not len(having):
        return having
    few = np.unique(having[np.linspace(0, len(having) - 1, _LOOKED_AT).astype(np.int64)])
    starts, members = index.sample_members
    spans = [members[starts[sample] : starts[sample + 1]] for sample in few.tolist()]
    return np.sort(np.concatenate(spans).astype(np.int64))


def _payloads(store: Store, file: DataFileInfo, index: TarIndex) -> dict[int, bytes]:
    wanted = {
        int(member): (int(index.offsets[member]), int(index.sizes[member]))
        for field in ("json", *_TEXT_FIELDS)
        for member in index.members_as(field)
        if member >= 0 and index.sizes[member] <= LONGEST_SIDECAR
    }
    with store.open(file) as opened:
        will_read(opened, sorted((start, start + size) for start, size in wanted.values()))
        return {member: opened.read_at(size, start) for member, (start, size) in wanted.items()}


def _taken(index: TarIndex, members: Int64Array) -> TarIndex:
    """What is embedded at some members."""
    columns = {
        key: None if column is None else column.take(pa.array(members))
        for key, column in (("json", index.json), ("captions", index.captions))
    }
    names = index.names.take(pa.array(members))
    return TarIndex(
        names, index.offsets[members], index.sizes[members], facts=index.facts, **columns
    )


def _compared(index: TarIndex, said: TarIndex) -> Compared:
    """An index, and the same members as their sidecars have them."""
    texts, there = _values(index.json), _values(said.json)
    captions, found = _values(index.captions), _values(said.captions)
    both = [member for member in there if member in texts]
    other_json = any(texts[member] != there[member] for member in both)
    words = [member for member in found if member in captions and member not in there]
    other_texts = words and all(captions[member] != found[member] for member in words)
    return Compared(
        other_json=other_json,
        other_texts=bool(other_texts) and not both and not _is_marked(index),
        lacking=bool(there.keys() - texts.keys() or found.keys() - captions.keys()),
    )


def _values(column: pa.StringArray | None) -> dict[int, Any]:
    if column is None:
        return {}
    texts = enumerate(column.to_pylist())
    return {member: json.loads(text) for member, text in texts if text is not None}


# --- captions that somebody wrote


def marked_as_written(index: TarIndex) -> TarIndex:
    """The index, which says that its captions may be others than the text files in its tar."""
    if not any(name in _TEXT_FIELDS for name in index.grouping.field_names):
        return index
    said = overlaid({}, index.facts.extras) | {_WRITTEN: True}
    return replace(index, facts=replace(index.facts, extras=json.dumps(said)))


def _is_marked(index: TarIndex) -> bool:
    return overlaid({}, index.facts.extras).get(_WRITTEN) is True


# --- what an index is made of that was there before


def with_words_of(old: TarIndex, new: TarIndex, *, of_this_content: bool) -> TarIndex:
    """The new index, with what the old one says of the same members and no scan finds.

    That is nothing if the old one has members that are not there, or embeds other texts. Hashes
    and shapes are kept only if the old index is ``of_this_content``.
    """
    at = _same_members(old, new)
    if at is None:
        return new
    old = _spread(old, at, len(new))
    known = _compared(old, new)
    if known.other_json or known.other_texts:
        return new
    kept: dict[str, Any] = {
        "captions": _first_of(old.captions, new.captions),
        "extras": _first_of(old.extras, new.extras),
    }
    facts = replace(new.facts, extras=_own(old.facts.extras, _OF_FACTS))
    if of_this_content:
        kept["json"] = _first_of(new.json, old.json)
        kept["sha256"] = _first_of(new.sha256, old.sha256)
        if new.widths is None or new.heights is None:
            kept |= {"widths": old.widths, "heights": old.heights}
            facts = replace(facts, has_geometry=old.facts.has_geometry)
        facts = replace(
            facts,
            hash=new.facts.hash or old.facts.hash,
            hash_lfs=new.facts.hash_lfs or old.facts.hash_lfs,
        )
    # What is stored of shapes is that of other columns.
    return replace(new, **kept, facts=facts, stored_shape_order=None)


def _same_members(old: TarIndex, new: TarIndex) -> Int64Array | None:
    """Where the members of the old index are in the new one; None unless all are there."""
    if not len(old) or not len(new):
        return None
    at = np.minimum(np.searchsorted(new.offsets, old.offsets), len(new) - 1)
    if not ((new.offsets[at] == old.offsets) & (new.sizes[at] == old.sizes)).all():
        return None
    names = (pc.replace_substring_regex(one, "^.*/", "") for one in (old.names, new.names))
    bases = [*names]
    return at if bases[0].equals(bases[1].take(pa.array(at))) else None


def _spread(old: TarIndex, at: Int64Array, count: int) -> TarIndex:
    """The columns of an index at the places of its members in a larger one."""
    place = np.full(count, -1, np.int64)
    place[at] = np.arange(len(at))
    taken = pa.array(place, mask=place < 0)
    texts: dict[str, Any] = {
        key: None if getattr(old, key) is None else getattr(old, key).take(taken)
        for key in ("captions", "json", "sha256")
    }
    extras = None if old.extras is None else _own_words(old.extras).take(taken)
    numbers: dict[str, Any] = {
        key: None if column is None else np.where(place < 0, 0, column[place]).astype(np.int32)
        for key, column in (("widths", old.widths), ("heights", old.heights))
    }
    names, zeros = old.names.take(taken), np.zeros(count, np.int64)
    return TarIndex(names, zeros, zeros, facts=old.facts, extras=extras, **texts, **numbers)


def _own_words(extras: pa.StringArray) -> pa.StringArray:
    """What extras say that no column does, whatever the form of the index."""
    return pa.array([_own(text, _OF_COLUMNS) for text in extras.to_pylist()], pa.string())


def _own(text: str | None, known: set[str]) -> str | None:
    said = {} if text is None else json.loads(text)
    own = {key: value for key, value in said.items() if key not in known}
    return json.dumps(own) if own else None


def _first_of(first: pa.StringArray | None, second: pa.StringArray | None) -> pa.StringArray | None:
    if first is None or second is None:
        return second if first is None else first
    return pc.coalesce(first, second)
