"""JSON indexes of tars, as webshart, hfutils and others write them: import and export.

An import makes columns of all known keys. Other keys of an entry are kept in the column
``extras``, those of the document in ``facts.extras``, and both come back in an export. The exact
text is not kept: an export has ``files`` as an object of entries with ``offset`` and ``length``,
which webshart reads, or as a list with ``path`` where names repeat.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StaleIndexError
from headrace.model import Int64Array
from headrace.sources.tar._headers import decoded
from headrace.sources.tar.grouping import DotRule, sample_keys
from headrace.sources.tar.index import JSON_ENDING, TarFacts, TarIndex
from headrace.sources.tar.sidecars import Captions, canonical_captions, is_captions, text_column

JsonEntry = dict[str, Any]

_NAMES = ("path", "fname", "filename")
_SIDECAR = ("json_path", "json_offset", "json_length")
_COLUMNS = frozenset(
    (
        *("offset", "length", "size", "width", "height", "aspect", "sha256"),
        *("caption", "captions", "json_metadata", *_NAMES, *_SIDECAR),
    )
)
"""Keys of entries that become columns, or follow from columns."""
_FACT_KEYS = {
    "filesize": "size",
    "etag": "etag",
    "hash_lfs": "hash_lfs",
    "includes_image_geometry": "has_geometry",
    "includes_sidecars": "has_sidecars",
    "captions_written": "captions_written",
    "last_good": "last_good",
}
_NO_END, _SAMPLE_KEY = "no_end_mark", "sample_key"
_LARGEST, _PIXELS = 2**63, 2**31


# --- import


@dataclass(frozen=True, slots=True)
class JsonFile:
    """The text of a JSON index; see ``IndexFile``."""

    text: bytes | memoryview
    shown: str

    @property
    def tars(self) -> Sequence[str]:
        """The expected name of the tar."""
        return [posixpath.basename(self.shown).removesuffix(JSON_ENDING) + ".tar"]

    def index(self, tar: int) -> TarIndex:
        """Return the index of the tar."""
        return read_json_index(self.text, self.shown)


def read_json_index(data: bytes | memoryview, shown: str) -> TarIndex:
    """Return the index in a JSON text, in any known dialect.

    Members stand in the order of their offsets. Sidecars that entries name, and that have no entry
    themselves, become members.

    Args:
        data: The text.
        shown: The name of the file in messages.

    Raises:
        StaleIndexError: The text is not an index of a tar, or holds impossible offsets or sizes.
    """
    document = _document(bytes(data), shown)
    entries = _Entries(document.pop("files"), shown)
    names, paths = entries.names, entries.values("json_path")
    sample_key = _exported_sample_key(document) or _sample_key(names, paths)
    if any(path is not None for path in paths):
        entries.add_sidecars(sample_key)
    is_foreign = not entries.keys.isdisjoint(("size", *_NAMES))
    index = entries.index()
    if sample_key is None:
        sample_key = "last-dot" if _pairs_by_last_dot(index) else "first-dot"
    facts = _facts(document, shown)
    facts = replace(
        facts,
        # Captions beside sidecars that were not embedded come from a user or another tool.
        captions_written=facts.captions_written
        or (index.captions is not None and not facts.has_sidecars),
        lists_all=facts.size is not None and not is_foreign,
        sample_key=sample_key,
    )
    return replace(index, facts=facts)


def _document(data: bytes, shown: str) -> JsonEntry:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as broken:
        _refuse(shown, f"it is not JSON ({broken})")
    if not isinstance(document, dict) or not isinstance(document.get("files"), dict | list):
        _refuse(shown, 'it is not an index of a tar, which is a JSON object with "files" in it')
    return document


def _facts(document: JsonEntry, shown: str) -> TarFacts:
    size = document.get("filesize")
    if size is not None and (type(size) is not int or not 0 <= size < _LARGEST):
        _refuse(shown, f"filesize is {size!r}, which cannot be the size of a tar")
    defaults = TarFacts()
    known: JsonEntry = {"size": size}
    for key, attribute in _FACT_KEYS.items():
        value, is_flag = document.get(key), isinstance(getattr(defaults, attribute), bool)
        if isinstance(value, bool if is_flag else str):
            known[attribute] = value
    own = {*_FACT_KEYS, _NO_END, _SAMPLE_KEY}
    extras = {key: value for key, value in document.items() if key not in own}
    return TarFacts(
        **known,
        has_end=document.get(_NO_END) is not True,
        extras=json.dumps(extras) if extras else None,
    )


class _Entries:
    """The entries of members, which become columns.

    Attributes:
        names: The name of each member.
        keys: All keys that entries have.
    """

    def __init__(self, files: dict[str, Any] | list[Any], shown: str) -> None:
        self._shown = shown
        self._entries: list[JsonEntry] = []
        self.names: list[str] = []
        self.keys: set[str] = set()
        named = files.items() if isinstance(files, dict) else ((_name(one), one) for one in files)
        for place, (name, entry) in enumerate(named):
            if name is None or not isinstance(entry, dict):
                _refuse(
                    shown, f"entry {place} of its files has no name, or is not an object ({name})"
                )
            try:
                name = decoded(name.encode("utf-8", "surrogateescape"))  # as a scan reads it
            except UnicodeEncodeError:
                _refuse(shown, f"the name {name!r} is not valid text")
            self.names.append(name)
            self._entries.append(entry)
            self.keys.update(entry)

    def index(self) -> TarIndex:
        """Return the index, in the order of offsets."""
        offsets = self._integers("offset")
        order = np.argsort(offsets, kind="stable")
        self.names = [self.names[place] for place in order.tolist()]
        self._entries = [self._entries[place] for place in order.tolist()]
        for entry in self._entries:
            entry.setdefault("length", entry.get("size"))
        columns: dict[str, Any] = {
            "captions": _json_column(map(_captions, self._entries)),
            "json": _json_column(self.values("json_metadata")),
            "sha256": text_column(
                [
                    one if isinstance(one, str) and one.isascii() else None
                    for one in self.values("sha256")
                ]
            ),
            "extras": _json_column(map(_extras, self._entries)),
        }
        if not self.keys.isdisjoint(("width", "height")):
            for key in ("width", "height"):
                columns[f"{key}s"] = self._integers(key, 0, below=_PIXELS).astype(np.int32)
        names = pa.array(self.names, pa.string())
        return TarIndex(names, offsets[order], self._integers("length"), **columns)

    def values(self, key: str) -> list[Any]:
        """Return the values of a key, None where it is missing."""
        return [entry.get(key) for entry in self._entries]

    def _integers(
        self, key: str, missing: int | None = None, *, below: int = _LARGEST
    ) -> Int64Array:
        """Return numbers of at least 0, with ``missing`` for absent ones if that is given."""
        values = self.values(key)
        for place, value in enumerate(values):
            if type(value) is float and value.is_integer():  # as some tools write sizes of images
                value = values[place] = int(value)
            if type(value) is int and 0 <= value < below:
                continue
            if value is None and missing is not None:
                values[place] = missing
            else:
                name = self.names[place]
                _refuse(self._shown, f"member {name!r}: {key} is {repr(value)[:80]}")
        return np.array(values, np.int64)

    def add_sidecars(self, sample_key: DotRule | None) -> None:
        """Add entries for sidecars that other entries name and that have no entry themselves.

        A sidecar whose name makes it part of another sample is left out.
        """
        listed = set(self.names)
        offsets, sizes = (self._integers(key, -1).tolist() for key in _SIDECAR[1:])
        named = zip([*self.names], self.values(_SIDECAR[0]), offsets, sizes, strict=True)
        for name, path, offset, size in named:
            if not isinstance(path, str) or path in listed or min(offset, size) < 0:
                continue
            if path.lower() == _sidecar_name(name, sample_key):
                self.names.append(path)
                self._entries.append({"offset": offset, "length": size})
                listed.add(path)


def _name(entry: Any) -> str | None:
    names = [entry.get(key) for key in _NAMES] if isinstance(entry, dict) else []
    return next((name for name in names if isinstance(name, str)), None)


def _captions(entry: JsonEntry) -> Captions | None:
    captions = entry.get("captions")
    return captions if is_captions(captions) else canonical_captions(entry)


def _extras(entry: JsonEntry) -> JsonEntry | None:
    """Return the keys of an entry that have no column, or None if all have one."""
    more = {key: value for key, value in entry.items() if key not in _COLUMNS}
    for key in ("caption", "captions"):
        if entry.get(key) is not None and not is_captions(entry[key]):
            more[key] = entry[key]
    return more or None


def _sidecar_name(name: str, sample_key: DotRule | None) -> str:
    """Return the name of the JSON sidecar of a member, in lower case."""
    folder, slash, base = name.lower().rpartition("/")
    stem = base.rpartition(".")[0] or base if sample_key == "last-dot" else base.partition(".")[0]
    return f"{folder}{slash}{stem}.json"


def _exported_sample_key(document: JsonEntry) -> DotRule | None:
    """Return the rule that an export of this library has noted."""
    return "last-dot" if document.get(_SAMPLE_KEY) == "last-dot" else None


def _sample_key(names: Sequence[str], paths: Sequence[Any]) -> DotRule | None:
    """Return the rule by which entries pair members with the sidecars that they name.

    Returns None if the names of sidecars follow from both rules, or if no sidecar is named.
    """
    by_last = False
    for name, path in zip(names, paths, strict=True):
        if isinstance(path, str) and name.count(".") > 1:
            if path.lower() == _sidecar_name(name, "first-dot"):
                return "first-dot"
            by_last = by_last or path.lower() == _sidecar_name(name, "last-dot")
    return "last-dot" if by_last else None


def _pairs_by_last_dot(index: TarIndex) -> bool:
    """Return True if sidecars are embedded at members that only the last dot tells apart."""
    for texts in (index.json, index.captions):
        if texts is None:
            continue
        members = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
        keys = sample_keys(index.names.take(pa.array(members)), "last-dot")
        samples = pa.array(index.grouping.samples[members])
        described = pa.table({"sample": samples, "key": keys}).filter(pc.field("sample") >= 0)
        if described.group_by(["sample", "key"]).aggregate([]).num_rows > len(
            pc.unique(described["sample"])
        ):
            return True
    return False


def _json_column(values: Iterable[Any]) -> pa.StringArray | None:
    return text_column([None if value is None else json.dumps(value) for value in values])


def _refuse(shown: str, why: str) -> NoReturn:
    raise StaleIndexError(
        f"{shown}: {why}: the index is damaged, or not that of a tar; make it anew with: headrace "
        "index"
    )


# --- export


def json_index(index: TarIndex) -> bytes:
    """Return the JSON text of an index, members in the order of their offsets."""
    facts = index.facts
    document: JsonEntry = {
        key: getattr(facts, attribute)
        for key, attribute in _FACT_KEYS.items()
        if getattr(facts, attribute) not in (None, False)
    }
    if not facts.has_sidecars:
        document.pop("captions_written", None)  # which follows from that
    if not facts.has_end:
        document[_NO_END] = True
    if facts.sample_key != "first-dot":
        document[_SAMPLE_KEY] = facts.sample_key
    document |= json.loads(facts.extras or "{}")
    names: list[str] = index.names.to_pylist()
    entries = _entries(index)
    if len(set(names)) == len(names):
        document["files"] = dict(zip(names, entries, strict=True))
    else:
        document["files"] = [
            {"path": name, **entry} for name, entry in zip(names, entries, strict=True)
        ]
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def json_with_captions(data: bytes, captions: Mapping[int, Captions]) -> bytes:
    """Return the text of a JSON index with other captions, and otherwise unchanged.

    Args:
        data: The text.
        captions: Captions by the offset of their member.
    """
    document = json.loads(data)
    if document.get("includes_sidecars"):
        document["captions_written"] = True
    files = document["files"]
    for entry in files.values() if isinstance(files, dict) else files:
        if entry["offset"] in captions:
            entry.pop("caption", None)
            entry["captions"] = captions[entry["offset"]]
    return json.dumps(document).encode() + b"\n"


def _entries(index: TarIndex) -> list[JsonEntry]:
    entries: list[JsonEntry] = [
        {"offset": offset, "length": size}
        for offset, size in zip(index.offsets.tolist(), index.sizes.tolist(), strict=True)
    ]
    if index.widths is not None and index.heights is not None:
        for entry, width, height in zip(
            entries, index.widths.tolist(), index.heights.tolist(), strict=True
        ):
            if width and height:
                entry |= {"width": width, "height": height, "aspect": width / height}
    for member, sidecar in _json_sidecars(index).items():
        place = (index.name(sidecar), int(index.offsets[sidecar]), int(index.sizes[sidecar]))
        entries[member] |= dict(zip(_SIDECAR, place, strict=True))
    columns: Mapping[str, pa.StringArray | None] = {
        "sha256": index.sha256,
        "captions": index.captions,
        "json_metadata": index.json,
        "": index.extras,
    }
    for key, column in columns.items():
        for entry, text in zip(entries, [] if column is None else column.to_pylist(), strict=False):
            if text is None:
                continue
            if key == "":
                entry |= json.loads(text)
            else:
                entry[key] = text if key == "sha256" else json.loads(text)
    return entries


def _json_sidecars(index: TarIndex) -> dict[int, int]:
    """Return the JSON sidecar of each main member that has one."""
    sidecars, primary = index.members_as("json"), index.primary_members
    has = np.flatnonzero((sidecars >= 0) & (sidecars != primary))
    return dict(zip(primary[has].tolist(), sidecars[has].tolist(), strict=True))
