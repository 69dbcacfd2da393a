"""Local index files: reading, writing, and putting captions into them."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.errors import AccessDeniedError, NothingFoundError, OptionError
from headrace.sources.tar._json_index import JsonFile, json_index, json_with_captions
from headrace.sources.tar._locate import PathLike
from headrace.sources.tar.index import (
    COLUMNAR_ENDING,
    JSON_ENDING,
    SIDECARS,
    IndexFile,
    TarIndex,
    write_index,
    writing,
)
from headrace.sources.tar.sidecars import Captions, is_captions
from headrace.storage import atomic_write, file_lock

ENDINGS = {"arrow": COLUMNAR_ENDING, "json": JSON_ENDING}
"""Endings of indexes by their form, first that which readers prefer."""
_SHOWN = 5


def open_index(path: PathLike) -> IndexFile | JsonFile:
    """Open an index file, columnar or JSON.

    Raises:
        FileNotFoundError: There is no such file.
        StaleIndexError: It is not an index, or is damaged.
    """
    shown = os.fspath(path)
    if shown.endswith(".arrow"):
        return IndexFile.open(shown)
    return JsonFile(file_content(shown), shown)


def read_index(path: PathLike) -> TarIndex:
    """Read the index of one tar from a file; see ``open_index``."""
    return open_index(path).index(0)


def file_content(path: str) -> bytes:
    """Return the bytes of a file where an index may be."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except IsADirectoryError:
        raise OptionError(
            f"{path} is a folder, and an index would have that name; rename it"
        ) from None
    except PermissionError as denied:
        raise AccessDeniedError(f"{path} cannot be read: {denied}") from denied


def write_index_as(path: PathLike, tars: Sequence[tuple[str, TarIndex]]) -> None:
    """Write the indexes of tars in the form that the name of the file says; JSON is of one tar.

    Raises:
        WriteError: The file cannot be written.
    """
    if os.fspath(path).endswith(".arrow"):
        write_index(path, tars)
        return
    ((_, index),) = tars
    with writing(path), atomic_write(path) as partial:
        partial.write_bytes(json_index(index))


@contextmanager
def index_lock(path: PathLike) -> Iterator[None]:
    """Hold the lock for reading an index file and replacing it by a changed one.

    Raises:
        WriteError: The lock cannot be created, because the folder is not writable.
    """
    folder, name = os.path.split(os.path.realpath(path))
    lock = file_lock(os.path.join(folder, f".{name}.change.lock"))
    with writing(path):
        lock.acquire()
    try:
        yield
    finally:  # processes that wait for this file then make a new one
        with suppress(FileNotFoundError):
            os.unlink(lock.lock_file)
        lock.release()


# --- captions


def write_captions(
    index: str | os.PathLike[str],
    captions: Mapping[str, Captions],
    *,
    tar: str | None = None,
) -> int:
    """Put captions into an index file, JSON or columnar.

    The file changes in one step, and processes that write captions into it take turns.

    Args:
        index: The index file.
        captions: Captions by the name of a member, or by the key of a sample, which stands for its
            main member. Sidecars get no captions.
        tar: The tar that is meant, where a columnar index holds several with the same names.

    Returns:
        The number of members that have other captions now.

    Raises:
        OptionError: A name belongs to no member or sample, or to several tars. Nothing is written.

    Examples:
        ```python
        from headrace import TarWriter, write_captions

        with TarWriter("tars/") as writer:
            writer.write({"__key__": "0001", "bin": b"0"})
        index = "tars/" + writer.shards[0]["index"]
        assert write_captions(index, {"0001": ["a zero"]}) == 1
        ```
    """
    path = os.fspath(index)
    _check(path, captions)
    with index_lock(path):
        opened = open_index(path)
        tars = [(name, opened.index(number)) for number, name in enumerate(opened.tars)]
        chosen = [number for number, (name, _) in enumerate(tars) if tar in (None, name)]
        if not chosen:
            raise OptionError(
                f"{path} is not an index of {tar!r}, but of {_some([t for t, _ in tars])}"
            )
        places = _places([tars[number][1] for number in chosen], captions, path)
        for number, found in zip(chosen, places, strict=True):
            if found:
                name, old = tars[number]
                tars[number] = name, with_captions(old, found)
        if path.endswith(".arrow"):
            write_index(path, tars)
        else:
            _write_json(path, tars[0][1], places[0])
    return sum(map(len, places))


def _write_json(path: str, index: TarIndex, found: Mapping[int, str]) -> None:
    captions = {int(index.offsets[member]): json.loads(text) for member, text in found.items()}
    with open(path, "rb") as file:
        changed = json_with_captions(file.read(), captions)
    with writing(path), atomic_write(path) as partial:
        partial.write_bytes(changed)


def with_captions(index: TarIndex, found: Mapping[int, str]) -> TarIndex:
    """Return an index with other captions, as JSON, at some members."""
    texts = [None] * len(index) if index.captions is None else index.captions.to_pylist()
    for member, text in found.items():
        texts[member] = text
    facts = replace(index.facts, captions_written=True)
    return replace(index, captions=pa.array(texts, pa.string()), facts=facts)


def _check(path: str, captions: Mapping[str, Captions]) -> None:
    for name, value in captions.items():
        if not is_captions(value):
            raise OptionError(
                f"captions of {name!r} must be a string or a list of strings, not {value!r}"
            )
    if not os.path.exists(path):
        raise NothingFoundError(f"{path} does not exist")
    columnar = path.removesuffix(JSON_ENDING) + COLUMNAR_ENDING
    if path.endswith(JSON_ENDING) and os.path.exists(columnar):
        raise OptionError(
            f"{columnar} is read instead of {path}; write the captions into that file, or remove it"
        )


def _places(
    indexes: Sequence[TarIndex], captions: Mapping[str, Captions], path: str
) -> list[dict[int, str]]:
    """Return the members of each index that get captions, with those as JSON."""
    found: list[dict[int, str]] = [{} for _ in indexes]
    unknown = dict.fromkeys(captions)
    for number, index in enumerate(indexes):
        for name, members in _meant(index, captions).items():
            if name not in unknown:
                raise OptionError(
                    f"{path} has {name!r} in more than one tar; choose one with tar=; nothing was "
                    "written"
                )
            del unknown[name]
            found[number].update(dict.fromkeys(members, json.dumps(captions[name])))
    if unknown:
        first = [name for index in indexes for name in index.names[:_SHOWN].to_pylist()]
        raise OptionError(
            f"{path} has no member or sample {_some([*unknown])} to give captions to "
            f"({len(unknown)} of {len(captions)} are unknown; its members have names like "
            f"{_some(first)}, and sidecars have no captions); nothing was written"
        )
    return found


def _meant(index: TarIndex, wanted: Container[str]) -> dict[str, list[int]]:
    """Return the members of these names, or else the main members of samples of these keys."""
    grouping, main = index.grouping, index.primary_members
    of_sidecars = [name.rpartition(".")[2] in SIDECARS for name in grouping.field_names]
    is_sidecar = np.array([*of_sidecars, False])[grouping.fields]
    is_sidecar[main] = False
    members = np.flatnonzero(~is_sidecar)
    names = index.names.take(pa.array(members)).to_pylist()
    meant: dict[str, list[int]] = {}
    for member, name in zip(members.tolist(), names, strict=True):
        if name in wanted:
            meant.setdefault(name, []).append(member)
    by_name = set(meant)
    for member, key in zip(main.tolist(), index.keys.to_pylist(), strict=True):
        if key in wanted and key not in by_name:
            meant.setdefault(key, []).append(member)
    return meant


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return shown + (", ..." if len(names) > _SHOWN else "")
