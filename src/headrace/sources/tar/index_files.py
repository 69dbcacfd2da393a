"""Index files as a whole: from one form into the other, and whether they are those of tars."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from headrace.errors import NothingFoundError, OptionError, ReadError, StaleIndexError
from headrace.sources.tar.arrow_index import write_arrow_indexes
from headrace.sources.tar.caption_writing import with_captions_of
from headrace.sources.tar.checks import check_index, verify_index
from headrace.sources.tar.finding import Source, find_tars, listed, names_of, stem_of
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.index_places import (
    IndexFile,
    IndexPlaces,
    file_of,
    opened_columns,
    places_of,
    whole_file,
)
from headrace.sources.tar.indexing import ENDINGS, PathLike, ReportProgress, local_path
from headrace.sources.tar.json_index import read_json_index
from headrace.sources.tar.one_file import OneFile
from headrace.sources.tar.opening import access_of
from headrace.sources.tar.own_files import (
    made_folder,
    place_below,
    read_index,
    refuse_what_is_none,
    write_index,
)
from headrace.sources.tar.replacing import turn_in_folder
from headrace.storage import Options

__all__ = ["convert_indexes", "verify_tars"]

logger = logging.getLogger(__name__)


def convert_indexes(
    source: Source,
    to: Literal["json", "arrow"],
    *,
    out: PathLike | None = None,
    one_file: PathLike | None = None,
    storage_options: Options | None = None,
) -> list[str]:
    """Write the index files of a source in the other form, beside them or in ``out``.

    ``one_file`` takes them all, as one columnar index. Nothing is lost, and no tar is needed:
    captions that were written later into the other form stay, and a file that is no index is
    refused.
    Of a folder, JSON files that are no indices are left out. Returns what was written.
    """
    found = list(_indexes(source, "arrow" if to == "json" else "json", storage_options))
    if not found:
        raise NothingFoundError(f"there is no index in {source} that could be converted")
    if one_file is not None:
        if to != "arrow":
            raise OptionError("one_file is a columnar index, and none of JSON")
        path = OneFile.at(local_path("one_file", one_file)).path
        with turn_in_folder(made_folder(path)):
            write_arrow_indexes(path, ((f"{one.name}.tar", one.index) for one in found))
        return [path]
    into = None if out is None else local_path("out", out)
    targets = [place_below(into or one.folder, one.name) + ENDINGS[to] for one in found]
    _refuse_twice(targets)
    for target in targets:
        refuse_what_is_none(target)
    for one, target in zip(found, targets, strict=True):
        _convert(one, target)
    return targets


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """An index that is to be converted."""

    folder: str
    name: str
    """the path below the folder that its tar would have, without its ending"""
    index: TarIndex
    written: int | None
    """when, if it is on this machine"""


def _refuse_twice(targets: Sequence[str]) -> None:
    twice = [target for target, times in Counter(targets).items() if times > 1]
    if twice:
        raise OptionError(
            f"there is more than one index that would become {twice[0]}; convert them one by one"
        )


def _convert(one: _Found, target: str) -> None:
    """Write an index; what was written later into the other form stays."""
    index = one.index
    with turn_in_folder(made_folder(target)):
        with suppress(FileNotFoundError, StaleIndexError):
            if one.written is None or os.stat(target).st_mtime_ns > one.written:
                index = with_captions_of(read_index(target), index)
        write_index(target, f"{one.name.rpartition('/')[2]}.tar", index)


def _indexes(source: Source, form: str, storage_options: Options | None) -> Iterator[_Found]:
    listing = listed(source, access_of(storage_options))
    ending = ".json" if form == "json" else ".arrow"
    files = [status for status in listing.files if status.path.endswith(ending)]
    for status, name in zip(files, names_of(files, listing.roots), strict=True):
        place = IndexFile(listing.store, file_of(status))
        folder = status.path[: -len(name)]
        written = os.stat(status.path).st_mtime_ns if listing.store.local else None
        if form == "arrow":
            columns = opened_columns(place)
            above = name.rpartition("/")[0]
            for number, tar in enumerate(columns.tars):
                alone = len(columns.tars) == 1
                inside = "/".join(filter(None, [above, stem_of(tar)]))
                own = name.removesuffix(ending).removesuffix(".idx")
                yield _Found(folder, own if alone else inside, columns.index(number), written)
            continue
        try:
            index = read_json_index(memoryview(whole_file(place)), status.path)
        except StaleIndexError as error:
            if status.path in listing.named:
                raise
            logger.warning("left out: %s", error)
            continue
        yield _Found(folder, name.removesuffix(ending), index, written)


def verify_tars(
    source: Source,
    metadata: Source | None = None,
    *,
    hash: bool = True,
    storage_options: Options | None = None,
    progress: ReportProgress | None = None,
) -> dict[str, Sequence[str]]:
    """What is wrong with the index of each tar, by the names of tars; of good ones, nothing.

    The headers of all members are read, and all bytes of tars of which the index has hashes.
    """
    access = access_of(storage_options)
    found = find_tars(source, access)
    places = places_of(found, metadata, access)
    problems: dict[str, Sequence[str]] = {}
    for shard, (tar, name) in enumerate(zip(found.tars, found.names, strict=True)):
        if progress is not None:
            progress("verifying", shard / len(found.tars))
        try:
            index = _placed(places, shard, tar.path)
            check_index(index, tar.size, tar.path)
            problems[name] = verify_index(found.store, file_of(tar), index, hash=hash)
        except ReadError as error:
            problems[name] = [str(error)]
    if progress is not None:
        progress("verifying", 1.0)
    return problems


def _placed(places: IndexPlaces, shard: int, tar: str) -> TarIndex:
    place = places[shard]
    if place is None:
        raise ReadError(f"{tar} has no index; make one with: headrace index")
    file, number = place
    if file.columnar:
        return opened_columns(file).index(number)
    return read_json_index(memoryview(whole_file(file)), file.file.path)
