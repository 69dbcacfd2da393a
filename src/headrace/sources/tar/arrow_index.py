"""The columnar index: one Arrow IPC file for one tar or many, read where it lies."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import StaleIndexError
from headrace.sources.tar.grouping import Grouping, Int32Array
from headrace.sources.tar.index import TarFacts, TarIndex
from headrace.sources.tar.replacing import replaced_file

__all__ = ["INDEX_KEY", "ArrowIndexes", "write_arrow_indexes"]

INDEX_KEY = b"headrace.tar_index"
_VERSION = 1
_NUMBERS = {"width": "widths", "height": "heights"}
_TEXTS = {"captions": "captions", "json": "json", "sha256": "sha256", "extras": "extras"}
_TYPES = {
    "name": pa.string(),
    "offset": pa.int64(),
    "size": pa.int64(),
    "sample": pa.int32(),
    "field": pa.int32(),
    "width": pa.int32(),
    "height": pa.int32(),
    "shape_order": pa.int32(),
    **dict.fromkeys(_TEXTS, pa.string()),
    "unlisted": pa.bool_(),
}
_FACTS_OTHER_THAN_TEXTS = ("size", "has_geometry", "has_end")
_ALWAYS = ("name", "offset", "size", "sample", "field")


class ArrowIndexes:
    """An opened columnar index: a record batch a tar, and what is said of each tar."""

    def __init__(
        self, reader: pa.RecordBatchFileReader, about: list[Any], shown: str, *, is_mapped: bool
    ) -> None:
        self._reader, self._about, self._shown = reader, about, shown
        self._is_mapped = is_mapped
        self.tars: Sequence[str] = [tar["path"] for tar in about]

    @classmethod
    def open(cls, source: str | pa.Buffer, shown: str) -> ArrowIndexes:
        """Open a file, which is mapped and not read, or the bytes of one."""
        try:
            is_mapped = isinstance(source, str)
            if isinstance(source, str):
                source = pa.memory_map(os.fsencode(source))
            reader = pa.ipc.open_file(source)
            about = json.loads((reader.schema.metadata or {})[INDEX_KEY])
            if about["version"] != _VERSION:
                _refuse(shown, f"it is of version {about['version']}, not {_VERSION}")
            if len(about["tars"]) != reader.num_record_batches:
                _refuse(shown, "it does not hold all tars that it names")
            if not all(map(_is_whole, about["tars"])):
                _refuse(shown, "what it says of its tars is damaged")
            if any(_TYPES[field.name] != field.type for field in reader.schema):
                _refuse(shown, "its columns are of other types")
            return cls(reader, about["tars"], shown, is_mapped=is_mapped)
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as broken:
            if isinstance(broken, FileNotFoundError | StaleIndexError):
                raise
            _refuse(shown, f"{type(broken).__name__}: {broken}")

    def num_members(self, tar: int) -> int:
        return int(self._about[tar]["members"])

    def num_samples(self, tar: int) -> int:
        return int(self._about[tar]["samples"])

    def facts(self, tar: int) -> TarFacts:
        return TarFacts(**self._about[tar]["facts"])

    def index(self, tar: int) -> TarIndex:
        """The index of a tar. Captions and what else is embedded in it are views of the file."""
        about = self._about[tar]
        try:
            batch = self._reader.get_batch(tar)
            if self._is_mapped:
                batch = _copied(batch)
            batch.validate(full=True)
            index = _index(batch, about, self.facts(tar))
        except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as broken:
            _refuse(self._shown, f"what it says of {about['path']} is damaged ({broken})")
        if len(index) != about["members"] or not _is_sound(index):
            _refuse(self._shown, f"what it says of {about['path']} is damaged")
        return index


def write_arrow_indexes(sink: str | os.PathLike[str], tars: Iterable[tuple[str, TarIndex]]) -> None:
    """Write the indices of tars, each with its path, into one file that appears when it is whole.

    Samples and the order of shapes are stored, so that loading computes nothing.
    """
    tars = list(tars)
    there = {key for _, index in tars for key in _optional(index)}
    names = [key for key in _TYPES if key in _ALWAYS or key in there]
    about = {"version": _VERSION, "tars": [_about(path, index) for path, index in tars]}
    schema = pa.schema(
        [(name, _TYPES[name]) for name in names], metadata={INDEX_KEY: json.dumps(about)}
    )
    with replaced_file(sink) as file, pa.ipc.new_file(file, schema) as writer:
        for _, index in tars:
            columns = _columns(index)
            arrays = [columns.get(name) for name in names]
            filled = [
                pa.nulls(len(index), _TYPES[name]) if array is None else array
                for name, array in zip(names, arrays, strict=True)
            ]
            writer.write_batch(pa.record_batch(filled, schema=schema))


def _about(path: str, index: TarIndex) -> dict[str, Any]:
    facts = {key: value for key, value in asdict(index.facts).items() if value is not None}
    return {
        "path": path,
        "members": len(index),
        "samples": index.num_samples,
        "fields": list(index.grouping.field_names),
        "shapes": len(index.shape_order),
        "columns": sorted(_optional(index)),
        "facts": facts,
    }


def _optional(index: TarIndex) -> set[str]:
    """The columns of an index that not every index has."""
    attributes = {**_NUMBERS, **_TEXTS, "unlisted": "unlisted"}
    there = {key for key, name in attributes.items() if getattr(index, name) is not None}
    return there | ({"shape_order"} if len(index.shape_order) else set())


def _columns(index: TarIndex) -> dict[str, pa.Array]:
    columns: dict[str, Any] = {
        "name": index.names,
        "offset": index.offsets,
        "size": index.sizes,
        "sample": index.grouping.samples,
        "field": index.grouping.fields,
    }
    for key in _optional(index) - {"shape_order"}:
        columns[key] = getattr(index, {**_NUMBERS, **_TEXTS}.get(key, key))
    if len(index.shape_order):
        padded = np.full(len(index), -1, np.int32)
        padded[: len(index.shape_order)] = index.shape_order
        columns["shape_order"] = padded
    return {
        key: column if isinstance(column, pa.Array) else pa.array(column, _TYPES[key])
        for key, column in columns.items()
    }


def _index(batch: pa.RecordBatch, about: dict[str, Any], facts: TarFacts) -> TarIndex:
    there = set(about["columns"])

    def numbers(key: str) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = batch.column(key).to_numpy(zero_copy_only=key != "unlisted")
        return values

    optional: dict[str, Any] = {_NUMBERS[key]: numbers(key) for key in there & _NUMBERS.keys()}
    optional |= {_TEXTS[key]: batch.column(key) for key in there & _TEXTS.keys()}
    shapes = numbers("shape_order")[: about["shapes"]] if about["shapes"] else np.empty(0, np.int32)
    return TarIndex(
        batch.column("name"),
        numbers("offset"),
        numbers("size"),
        unlisted=numbers("unlisted") if "unlisted" in there else None,
        facts=facts,
        stored_grouping=Grouping(
            numbers("sample"), numbers("field"), tuple(about["fields"]), about["samples"]
        ),
        stored_shape_order=shapes,
        **optional,
    )


def _is_whole(tar: dict[str, Any]) -> bool:
    """Whether all is said of a tar, and each as what it is."""
    facts = tar["facts"]
    counts = [tar[key] for key in ("members", "samples", "shapes")]
    texts = [tar["path"], *tar["fields"], *tar["columns"]]
    texts += [facts[key] for key in facts if key not in _FACTS_OTHER_THAN_TEXTS]
    return (
        all(type(count) is int and count >= 0 for count in (*counts, facts.get("size", 0)))
        and all(type(text) is str for text in texts)
        and facts.keys() <= TarFacts.__dataclass_fields__.keys()
    )


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What says which bytes are whose, in memory of its own: somebody may write over the file."""
    columns = [
        column if name in _TEXTS else pa.concat_arrays([column, column.slice(0, 0)])
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _is_sound(index: TarIndex) -> bool:
    """Whether what is stored of samples refers to samples and fields that there are."""
    grouping = index.grouping
    return (
        _between(grouping.samples, -1, grouping.count)
        and bool(np.bincount(grouping.samples + 1, minlength=grouping.count + 1)[1:].all())
        and np.array_equal(grouping.samples < 0, grouping.fields < 0)
        and _between(grouping.fields, -1, len(grouping.field_names))
        and _between(index.shape_order, 0, grouping.count)
    )


def _between(numbers: Int32Array, least: int, stop: int) -> bool:
    return not len(numbers) or bool(least <= numbers.min() and numbers.max() < stop)


def _refuse(shown: str, why: str) -> NoReturn:
    raise StaleIndexError(
        f"{shown} is no columnar index of tars that can be read: {why}; make it anew with: "
        "headrace index"
    )
