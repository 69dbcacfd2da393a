"""Index files as a whole: from one form into the other, and whether they are those of tars."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Literal

from penstock.archives.opening import access_of
from penstock.archives.tar.arrow_index import write_arrow_indexes
from penstock.archives.tar.checks import check_index, verify_index
from penstock.archives.tar.finding import Source, find_tars, listed, names_of, stem_of
from penstock.archives.tar.index import TarIndex
from penstock.archives.tar.index_jobs import place_below, write_index
from penstock.archives.tar.index_places import (
    IndexFile,
    IndexPlaces,
    file_of,
    opened_columns,
    places_of,
    whole_file,
)
from penstock.archives.tar.indexing import ENDINGS, PathLike, ReportProgress, local_path
from penstock.archives.tar.json_index import read_json_index
from penstock.errors import NothingFoundError, OptionError, ReadError, StaleIndexError
from penstock.storage import Options

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

    ``one_file`` takes them all, as one columnar index. Nothing is lost, and no tar is needed.
    Of a folder, JSON files that are no indices are left out. Returns what was written.
    """
    found = list(_indexes(source, "arrow" if to == "json" else "json", storage_options))
    if not found:
        raise NothingFoundError(f"there is no index in {source} that could be converted")
    if one_file is not None:
        if to != "arrow":
            raise OptionError("one_file is a columnar index, and none of JSON")
        path = local_path("one_file", one_file)
        write_arrow_indexes(path, ((f"{name}.tar", index) for _, name, index in found))
        return [path]
    written = []
    for folder, name, index in found:
        below = place_below(folder if out is None else local_path("out", out), name)
        os.makedirs(os.path.dirname(below), exist_ok=True)
        write_index(below + ENDINGS[to], f"{name.rpartition('/')[2]}.tar", index)
        written.append(below + ENDINGS[to])
    return written


def _indexes(
    source: Source, form: str, storage_options: Options | None
) -> Iterator[tuple[str, str, TarIndex]]:
    """A folder, the path below it that a tar would have, without its ending, and its index."""
    listing = listed(source, access_of(storage_options))
    ending = ".json" if form == "json" else ".arrow"
    files = [status for status in listing.files if status.path.endswith(ending)]
    for status, name in zip(files, names_of(files, listing.roots), strict=True):
        place = IndexFile(listing.store, file_of(status))
        folder = status.path[: -len(name)]
        if form == "arrow":
            columns = opened_columns(place)
            above = name.rpartition("/")[0]
            for number, tar in enumerate(columns.tars):
                alone = len(columns.tars) == 1
                inside = "/".join(filter(None, [above, stem_of(tar)]))
                own = name.removesuffix(ending).removesuffix(".idx")
                yield folder, own if alone else inside, columns.index(number)
            continue
        try:
            index = read_json_index(memoryview(whole_file(place)), status.path)
        except StaleIndexError as error:
            if status.path in listing.named:
                raise
            logger.warning("left out: %s", error)
            continue
        yield folder, name.removesuffix(ending), index


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
        raise ReadError(f"{tar} has no index; make one with: penstock index")
    file, number = place
    if file.columnar:
        return opened_columns(file).index(number)
    return read_json_index(memoryview(whole_file(file)), file.file.path)
