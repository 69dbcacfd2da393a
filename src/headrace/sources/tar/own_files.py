"""Index files on this machine: read, written, and told from files that are somebody's."""

from __future__ import annotations

import json
import os
from typing import Any

from headrace.errors import AccessDeniedError, OptionError, StaleIndexError, WriteError
from headrace.sources.tar.arrow_index import ArrowIndexes, write_arrow_indexes
from headrace.sources.tar.checks import check_index
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.json_index import json_index, read_json_index
from headrace.sources.tar.replacing import replaced_file

__all__ = [
    "is_index",
    "made_folder",
    "newest_fitting",
    "other_form",
    "place_below",
    "read_index",
    "refuse_what_is_none",
    "write_index",
]

_COLUMNAR, _JSON = ".idx.arrow", ".json"
_MARK = b"headrace.tar_index"
"""is in every columnar index, damaged or not"""


def read_index(path: str, number: int = 0) -> TarIndex:
    """The index in a file of this machine, in either form; of many in one file, which it is."""
    if path.endswith(".arrow"):
        opened = ArrowIndexes.open(path, path)
        if number >= len(opened.tars):
            raise StaleIndexError(f"{path} is an index of {len(opened.tars)} tars only")
        return opened.index(number)
    return read_json_index(_content(path), path)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except IsADirectoryError:
        raise OptionError(f"{path} is where an index would be, but is a folder") from None
    except PermissionError as denied:
        raise AccessDeniedError(f"{path} cannot be read: {denied}") from denied


def write_index(path: str, name: str, index: TarIndex) -> None:
    """Put an index into a file, which appears when it is whole."""
    if path.endswith(".arrow"):
        write_arrow_indexes(path, [(name, index)])
        return
    with replaced_file(path) as file:
        file.write(json_index(index))


def made_folder(path: str) -> str:
    """The folder that a file is to be in, which is made."""
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as failed:
        raise WriteError(f"{folder} cannot be made: {failed}") from failed
    return folder


def other_form(path: str) -> str:
    """Where the index of the same tar is in the other form."""
    if path.endswith(_COLUMNAR):
        return path.removesuffix(_COLUMNAR) + _JSON
    return path.removesuffix(_JSON) + _COLUMNAR


def newest_fitting(path: str, tar_size: int | None) -> str:
    """Of an index and that in the other form, the one that was written last and may be of a tar.

    Where neither may be, or only one is there, it is the one that was asked for.
    """
    both = [path, other_form(path)]
    times = {one: os.stat(one).st_mtime_ns for one in both if os.path.isfile(one)}
    if len(times) == 1:
        return path
    newest = sorted(times, key=lambda one: (-times[one], one != path))
    return next((one for one in newest if _may_be_of(one, tar_size)), path)


def _may_be_of(path: str, tar_size: int | None) -> bool:
    try:
        if path.endswith(".arrow"):
            return tar_size is None or ArrowIndexes.open(path, path).facts(0).size == tar_size
        check_index(read_index(path), tar_size, path)
    except (StaleIndexError, AccessDeniedError, IndexError):
        return False
    return True


def is_index(path: str) -> bool:
    """Whether a file is an index of one tar or many, be it stale or damaged."""
    if not os.path.isfile(path):
        return False
    try:
        if path.endswith(".arrow"):
            return bool(ArrowIndexes.open(path, path))
        return _is_of_a_tar(json.loads(_content(path) or b"{}"))
    except StaleIndexError:
        return _MARK in _content(path)
    except (ValueError, RecursionError):
        return False


def _is_of_a_tar(document: Any) -> bool:
    files = document.get("files") if isinstance(document, dict) else None
    if not isinstance(files, dict | list):
        return False
    entries = files if isinstance(files, list) else files.values()
    if not entries:
        return "filesize" in document
    return all(isinstance(entry, dict) and "offset" in entry for entry in entries)


def refuse_what_is_none(path: str) -> None:
    """An index that is stale is made anew; any other file is somebody's and stays."""
    if os.path.lexists(path) and not is_index(path):
        what = "is a folder" if os.path.isdir(path) else "holds something else"
        raise OptionError(
            f"{path} is where the index would be, but {what}; move it, or have the indices in "
            "another place (--out, --one-file)"
        )


def place_below(folder: str, name: str) -> str:
    """The path of something in a folder; a name that leads out of it is refused."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name:
        raise OptionError(
            f"{name!r} cannot be the name of a file in {folder}; index that tar by itself"
        )
    return os.path.join(folder, *parts)
