"""Local index files: reading, writing, converting, and recognizing them."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from headrace.errors import (
    AccessDeniedError,
    NothingFoundError,
    OptionError,
    StaleIndexError,
    WriteError,
)
from headrace.sources.tar._json_index import json_index, read_json_index
from headrace.sources.tar._locate import PathLike, TarLocation, listed, names_of, stem_of
from headrace.sources.tar._opening import access_of
from headrace.sources.tar._places import IndexPlace, file_of, whole_file
from headrace.sources.tar.index import (
    COLUMNAR_ENDING,
    JSON_ENDING,
    IndexFile,
    TarIndex,
    write_index,
)
from headrace.storage import Options, atomic_write, file_lock, protocol_of, remove_partial

__all__ = [
    "ENDINGS",
    "convert_indexes",
    "index_lock",
    "local_path",
    "make_folder",
    "path_below",
    "read_index",
    "refuse_other_file",
    "remove_leftovers",
    "write_index_as",
]

logger = logging.getLogger(__name__)

ENDINGS = {"json": JSON_ENDING, "arrow": COLUMNAR_ENDING}


def read_index(path: PathLike) -> TarIndex:
    """Read the index of one tar from a file, columnar or JSON.

    Raises:
        FileNotFoundError: There is no such file.
        StaleIndexError: It is no index, or damaged.
    """
    shown = os.fspath(path)
    if shown.endswith(".arrow"):
        return IndexFile.open(path).index(0)
    return read_json_index(_content(shown), shown)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except IsADirectoryError:
        raise OptionError(f"{path} is where an index would be, but is a folder") from None
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
    try:
        with atomic_write(path) as partial:
            partial.write_bytes(json_index(index))
    except OSError as failed:
        raise WriteError(f"{os.fspath(path)} cannot be written: {failed}") from failed


@contextmanager
def index_lock(path: PathLike) -> Iterator[None]:
    """Hold the lock for reading an index file and replacing it by a changed one.

    Raises:
        WriteError: There can be no lock, for nothing can be written there.
    """
    folder, name = os.path.split(os.path.realpath(path))
    lock = file_lock(os.path.join(folder, f".{name}.change.lock"))
    try:
        lock.acquire()
    except OSError as failed:
        raise WriteError(f"{os.fspath(path)} cannot be written: {failed}") from failed
    try:
        yield
    finally:  # others that wait for this file notice that it is gone, and make a new one
        with suppress(FileNotFoundError):
            os.unlink(lock.lock_file)
        lock.release()


def remove_leftovers(path: str) -> None:
    """Remove the part of an index and the locks that a killed process left; live ones stay."""
    remove_partial(path)
    remove_partial(f"{path}.change")


def make_folder(path: str) -> None:
    """Make the folder that a file is to lie in."""
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as failed:
        raise WriteError(f"{folder} cannot be made: {failed}") from failed


def refuse_other_file(path: str) -> None:
    """Raise an OptionError if a file is there that is no index, not even a stale or damaged one."""
    if os.path.lexists(path) and not _is_index(path):
        what = "is a folder" if os.path.isdir(path) else "holds something else"
        raise OptionError(
            f"{path} is where the index would be, but {what}; move it, or have the indexes in "
            "another place (--out, --one-file)"
        )


def _is_index(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    content = _content(path)
    if path.endswith(".arrow"):
        return b"headrace.tar_index" in content
    try:
        document = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return False
    files = document.get("files") if isinstance(document, dict) else None
    entries = [*files.values()] if isinstance(files, dict) else files
    if not isinstance(entries, list):
        return False
    if not entries:
        return "filesize" in document
    return all(isinstance(entry, dict) and "offset" in entry for entry in entries)


def local_path(what: str, path: PathLike) -> str:
    """Return the absolute path of something that is written, which lies on this machine."""
    text = os.fspath(path)
    if protocol_of(text):
        raise OptionError(
            f"{what} must be a path on this machine, not {text!r}; copy it from there"
        )
    return os.path.abspath(os.path.expanduser(text.removeprefix("file://")))


def path_below(folder: str, name: str) -> str:
    """Return the path of a file in a folder; a name that leads out of it is refused."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name:
        raise OptionError(
            f"{name!r} cannot be the name of a file in {folder}; index that tar by itself"
        )
    return os.path.join(folder, *parts)


# --- from one form into the other


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """An index that is to be converted; ``name`` is the path of its tar below the folder."""

    folder: str
    name: str
    index: TarIndex


def convert_indexes(
    source: TarLocation,
    to: Literal["json", "arrow"],
    *,
    out: PathLike | None = None,
    one_file: PathLike | None = None,
    storage_options: Options | None = None,
) -> list[str]:
    """Write index files in the other form. No tar is needed.

    Args:
        source: Index files, or folders of them. JSON files of a folder that are no indexes are left
            out.
        to: The form that is written.
        out: The folder for them; beside the others if left out.
        one_file: One columnar file for all of them.
        storage_options: Options of the store of the source.

    Returns:
        The paths of the files that were written.
    """
    found = list(_indexes(source, "arrow" if to == "json" else "json", storage_options))
    if not found:
        raise NothingFoundError(f"there is no index in {source} that could be converted")
    if one_file is not None:
        if to != "arrow":
            raise OptionError("one_file is a columnar index, and none of JSON")
        targets = [local_path("one_file", one_file)]
        groups = [[(f"{one.name}.tar", one.index) for one in found]]
    else:
        into = None if out is None else local_path("out", out)
        targets = [path_below(into or one.folder, one.name) + ENDINGS[to] for one in found]
        groups = [[(f"{one.name.rpartition('/')[2]}.tar", one.index)] for one in found]
    twice = [target for target, times in Counter(targets).items() if times > 1]
    if twice:
        raise OptionError(
            f"there is more than one index that would become {twice[0]}; convert them one by one"
        )
    for target in targets:
        refuse_other_file(target)
    for target, tars in zip(targets, groups, strict=True):
        make_folder(target)
        with index_lock(target):
            write_index_as(target, tars)
    return targets


def _indexes(source: TarLocation, form: str, storage_options: Options | None) -> Iterator[_Found]:
    listing = listed(source, access_of(storage_options))
    ending = ".json" if form == "json" else ".arrow"
    files = [status for status in listing.files if status.path.endswith(ending)]
    for status, name in zip(files, names_of(files, listing.roots), strict=True):
        folder = status.path[: -len(name)]
        if form == "arrow":
            columns = IndexPlace(listing.store, file_of(status)).open_columns()
            above = name.rpartition("/")[0]
            for number, tar in enumerate(columns.tars):
                alone = name.removesuffix(ending).removesuffix(".idx")
                inside = "/".join(filter(None, [above, stem_of(tar)]))
                own_name = alone if len(columns.tars) == 1 else inside
                yield _Found(folder, own_name, columns.index(number))
            continue
        try:
            text = memoryview(whole_file(listing.store, file_of(status)))
            yield _Found(folder, name.removesuffix(ending), read_json_index(text, status.path))
        except StaleIndexError as error:
            if status.path in listing.named:
                raise
            logger.warning("left out: %s", error)
