"""``write_tar``: any source as indexed tar shards, which appear when all of them are whole."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

from headrace.errors import OptionError, WriteError
from headrace.storage import Options
from headrace.write.journal import Journal
from headrace.write.overlap import refuse_overlap
from headrace.write.places import PartsDirectory, parts_directory
from headrace.write.tar_members import checked_key
from headrace.write.tar_samples import Place, Sample, Samples
from headrace.write.tar_shard import Noting, members_of
from headrace.write.tar_shards import ShardLayout, ShardReceipt, Shards, clear_unfinished
from headrace.write.tar_sources import Choice, is_at_hand, other_keys, samples_of
from headrace.write.target import TargetOptions
from headrace.write.work import PathLike, Progress, nobody, target_location, work_directory

__all__ = ["TarReport", "write_tar"]

logger = logging.getLogger(__name__)

_VERSION = 1
_MARKER = "_headrace_tars.json"
_SAMPLES_BETWEEN = 64
"""two words on progress"""


@dataclass(frozen=True, slots=True)
class TarReport:
    """What was written."""

    target: str
    samples: int
    shards: tuple[str, ...]
    """names of the tars"""
    resumed: bool
    """whether earlier, unfinished work was gone on with"""


def write_tar(
    source: Any,
    directory: PathLike,
    *,
    shard_bytes: int | str = "1GiB",
    shard_samples: int | None = None,
    pattern: str = "shard_{:05d}.tar",
    index: str | None = "json",
    geometry: bool = False,
    hash: bool = True,
    sidecars: bool = True,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    fields: Mapping[str, str] | None = None,
    key_column: str | None = None,
    keys: str = "keep",
    metadata: str | os.PathLike[str] | None = None,
    storage_options: Options | None = None,
    target_options: Options | None = None,
    work_dir: PathLike | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> TarReport:
    """Write a source as tar shards with their indices, in its order.

    ``source`` is a folder of files (those whose paths are the same up to the first dot of the name
    are a sample), tars (``metadata``: where their indices are), tabular files, a dataset or backend
    of this library, or tables at hand; ``format`` says which of these a path is: ``"folder"``,
    ``"tar"``, or the format of a table. ``shard_bytes`` to ``sidecars`` are those of TarWriter.

    Of a table, ``fields`` says which field a column is (``{"image": "jpg"}``). Other columns of
    bytes, and those named txt, cls, npy or json, are fields by their names, and all that is left
    goes into the field ``json`` (where NaN is null). ``key_column`` holds the keys: else
    ``__key__`` does if there is one, or rows are numbered.
    Captions in the indices of source tars go into those of the copy; nothing else of them does.
    ``keys="prefix"`` puts the path of a source tar before its keys, for tars whose keys repeat;
    ``"number"`` gives all samples new ones.

    The directory appears when all is written. A run that was killed is gone on with by the next one
    with the same source and options, behind the last whole tar, and to the same bytes.
    """
    layout = ShardLayout(
        shard_bytes=shard_bytes,
        shard_samples=shard_samples,
        pattern=pattern,
        index=index,
        noting=Noting(geometry=geometry, hash=hash, sidecars=sidecars),
    )
    choice = Choice(
        format=format,
        columns=columns,
        fields=fields or {},
        key_column=key_column,
        keys=keys,
        metadata=metadata,
        storage_options=storage_options,
    )
    location = target_location(directory)
    work_directory_ = work_directory(work_dir, location, "tar")
    options = TargetOptions(
        location=location,
        work_dir=work_directory_,
        overwrite=overwrite,
        storage_options=target_options or {},
    )
    target = parts_directory(options, _MARKER)
    samples = samples_of(source, choice)
    refuse_overlap(samples.paths, samples.named, location)
    if not Journal.exists(work_directory_):
        target.refuse()
    work = {"version": _VERSION, **samples.facts, **choice.facts, **asdict(layout)}
    with closing(Journal(work_directory_, {**work, "target": location})) as journal:
        copy = _Copy(samples, target, layout, journal, progress or nobody)
        try:
            report = copy.finish(location)
        except BaseException:
            if is_at_hand(samples) or copy.is_empty:  # nobody could go on with it, or need to
                copy.forget()
            raise
        copy.forget()
    return report


class _Copy:
    """What the journal says is done, and what is left to do."""

    def __init__(
        self,
        samples: Samples,
        target: PartsDirectory,
        layout: ShardLayout,
        journal: Journal,
        progress: Progress,
    ) -> None:
        self._samples = samples
        self._target = target
        self._layout = layout
        self._journal = journal
        self._progress = progress
        self._place: Place = (0, 0)

    def finish(self, location: str) -> TarReport:
        """Do what the journal does not say is done."""
        if not self._journal.all("begun"):
            self._journal.note({"begun": uuid4().hex})
        run = self._journal.all("begun")[0]["begun"]
        self._check(run)
        if not self._journal.all("complete"):
            self._copy()
            self._journal.note({"complete": True})
        shards = self._shards()
        samples = sum(shard["samples"] for shard in shards)
        names = [name for shard in shards for name in _names(shard)]
        facts = {"run": run, "samples": samples, "tars": shards}
        self._target.commit(names, json.dumps(facts, indent=1), run)
        self._progress("writing", 1.0)
        logger.info("%s: %d samples in %d tars", location, samples, len(shards))
        tars = tuple(shard["name"] for shard in shards)
        return TarReport(location, samples, tars, self._journal.resumed)

    @property
    def is_empty(self) -> bool:
        """Whether no tar is whole yet."""
        return not self._shards()

    def forget(self) -> None:
        """Remove what is of no use any more."""
        shutil.rmtree(self._target.staging, ignore_errors=True)
        self._journal.forget()
        directory = self._journal.directory
        if not os.listdir(directory):
            os.rmdir(directory)

    def _shards(self) -> list[ShardReceipt]:
        return [entry["shard"] for entry in self._journal.all("shard")]

    def _check(self, run: str) -> None:
        for shard in self._shards():
            sizes = (shard["size_bytes"], shard["index_bytes"])
            for name, size in zip(_names(shard), sizes, strict=False):
                if not self._target.holds(name, size, run):
                    raise WriteError(
                        f"{name}, which an earlier run wrote, is gone or another; delete "
                        f"{self._journal.directory} to start anew"
                    )

    def _copy(self) -> None:
        done = self._journal.all("shard")
        number = sum(entry["shard"]["samples"] for entry in done)
        self._place = tuple(done[-1]["place"]) if done else (0, 0)
        staging = self._target.staging
        staging.mkdir(parents=True, exist_ok=True)
        clear_unfinished(staging, self._layout)
        shards = Shards(staging, self._layout, first=len(done), finished=self._keep)
        following = self._samples.read(self._place, number)
        try:
            for place, sample in following:
                if number % _SAMPLES_BETWEEN == 0:
                    self._progress("writing", min(self._samples.share(self._place), 0.999))
                self._add(shards, sample)
                self._place, number = place, number + 1
            shards.finish(at_least_one=True)
        except BaseException:
            shards.abandon()
            raise
        finally:
            following.close()  # for an error holds on to it, and it to threads

    def _add(self, shards: Shards, sample: Sample) -> None:
        with self._telling_of_keys():
            key = checked_key(sample)
        members = members_of(key, sample)
        with self._telling_of_keys():
            shards.add(key, members)

    @contextmanager
    def _telling_of_keys(self) -> Iterator[None]:
        try:
            yield
        except OptionError as error:
            raise OptionError(f"{error}; {other_keys(self._samples)}") from error

    def _keep(self, shard: ShardReceipt) -> None:
        for name in reversed(_names(shard)):  # the index first
            self._target.keep(name)
        self._journal.note({"shard": shard, "place": self._place})


def _names(shard: ShardReceipt) -> list[str]:
    """The tar, and its index if it has one."""
    return [shard["name"], *([shard["index"]] if shard["index"] else ())]
