"""Directories that show their files when all are there: of this machine, and of stores."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.errors import OptionError, WriteError
from headrace.storage import RemoteStore
from headrace.storage.access import Access, protocol_of
from headrace.write.durable import flush_directory, whole_file
from headrace.write.failures import writing
from headrace.write.target import TargetOptions
from headrace.write.uploads import delete, put

__all__ = ["LocalDirectory", "PartsDirectory", "RemoteDirectory", "parts_directory"]

_MARKER = "_headrace_shuffled.json"
"""written last, where files cannot all appear at once; readers of data files pass it over"""
_READ_ONLY = {"http", "https", "hf"}


class PartsDirectory(Protocol):
    """Where the files of a target come to lie."""

    @property
    def staging(self) -> Path:
        """The directory of this machine that files are written into first."""
        ...

    def refuse(self) -> None:
        """Raise an OptionError if there is something already that must not be lost."""
        ...

    def keep(self, name: str) -> None:
        """A file in the staging directory is whole."""
        ...

    def holds(self, name: str, size_bytes: int, run: str) -> bool:
        """Whether a file that was kept is still there, or where a commit has put it."""
        ...

    def commit(self, names: Sequence[str], marker: str, run: str) -> None:
        """Show these files and no others; may be called again."""
        ...


@dataclass(frozen=True, slots=True)
class LocalDirectory:
    """A directory that is filled under another name beside it, and renamed when it is whole."""

    target: Path
    overwrite: bool
    marker: str = _MARKER

    @classmethod
    def of(cls, options: TargetOptions, marker: str = _MARKER) -> LocalDirectory:
        """The directory at a path; links are followed."""
        return cls(Path(os.path.realpath(options.location)), options.overwrite, marker)

    @property
    def staging(self) -> Path:
        return self.target.with_name(f".{self.target.name}.headrace-parts")

    @property
    def _replaced(self) -> Path:
        return self.target.with_name(f".{self.target.name}.headrace-replaced")

    def refuse(self) -> None:
        with writing(self.target):
            if self.target.exists() and not self.target.is_dir():
                raise OptionError(f"{self.target} is a file; the target is a directory")
            if self._occupied() and not self.overwrite:
                raise OptionError(
                    f"{self.target} is not empty; choose another target, or say overwrite "
                    "to replace all that is in it"
                )

    def keep(self, name: str) -> None:
        """It is where it should be."""

    def holds(self, name: str, size_bytes: int, run: str) -> bool:
        shown = not self.staging.exists() and _run_of(self.target / self.marker) == run
        found = (self.target if shown else self.staging) / name
        return found.is_file() and found.stat().st_size == size_bytes

    def commit(self, names: Sequence[str], marker: str, run: str) -> None:
        with writing(self.target):
            if self.staging.exists():
                for file in self.staging.iterdir():
                    if file.name not in names:
                        file.unlink()
                with whole_file(self.staging / self.marker) as path:
                    path.write_text(marker, encoding="utf-8")
                self._make_way()
                os.rename(self.staging, self.target)
                flush_directory(self.target.parent)
            elif _run_of(self.target / self.marker) != run:
                raise WriteError(f"the files in {self.staging} are gone; run the same again")
            if self._replaced.exists():
                shutil.rmtree(self._replaced)

    def _make_way(self) -> None:
        """Put what was there aside; a kill right here leaves it there until the next run."""
        if self._occupied():
            if not self.overwrite:
                raise WriteError(
                    f"{self.target} has got files of others meanwhile; empty it, or say overwrite"
                )
            if self._replaced.exists():
                shutil.rmtree(self._replaced)
            os.rename(self.target, self._replaced)

    def _occupied(self) -> bool:
        return self.target.is_dir() and any(self.target.iterdir())


@dataclass(frozen=True, slots=True)
class RemoteDirectory:
    """A prefix of a store. Files are there as they come; the marker says that all are."""

    url: str
    store: RemoteStore
    staging: Path
    overwrite: bool
    marker: str = _MARKER

    @classmethod
    def of(cls, options: TargetOptions, marker: str = _MARKER) -> RemoteDirectory:
        """The prefix at a URL."""
        if protocol_of(options.location) in _READ_ONLY:
            raise OptionError(
                f"{options.location} cannot be written to; give a directory or an object store"
            )
        access = Access(storage_options=options.storage_options)
        store, (url,) = access.store_for([options.location])
        assert isinstance(store, RemoteStore)
        return cls(url, store, options.work_dir / "parts", options.overwrite, marker)

    def refuse(self) -> None:
        if not self.overwrite and next(self.store.list(self.url), None) is not None:
            raise OptionError(
                f"{self.url} is not empty; choose another target, or say overwrite to replace "
                "all that is in it"
            )

    def keep(self, name: str) -> None:
        """Files of an older copy may lie beside new ones now, so its marker goes first."""
        marker = f"{self.url}/{self.marker}"
        if self.store.status(marker) is not None:
            delete(self.store, marker)
        put(self.store, self.staging / name, f"{self.url}/{name}")
        (self.staging / name).unlink()

    def holds(self, name: str, size_bytes: int, run: str) -> bool:
        found = self.store.status(f"{self.url}/{name}")
        return found is not None and found.size == size_bytes

    def commit(self, names: Sequence[str], marker: str, run: str) -> None:
        kept = {f"{self.url}/{name}" for name in (*names, self.marker)}
        for file in list(self.store.list(self.url)):
            if file.path not in kept:
                if not self.overwrite:
                    raise WriteError(
                        f"{self.url} has got files of others meanwhile, such as {file.path}; "
                        "remove them, or say overwrite"
                    )
                delete(self.store, file.path)
        self.staging.mkdir(parents=True, exist_ok=True)
        path = self.staging / self.marker
        with writing(path):
            path.write_text(marker, encoding="utf-8")
        put(self.store, path, f"{self.url}/{self.marker}")


def parts_directory(options: TargetOptions, marker: str = _MARKER) -> PartsDirectory:
    """The one at the location of a target; ``marker`` is the file that is written last."""
    kind = RemoteDirectory if protocol_of(options.location) else LocalDirectory
    return kind.of(options, marker)


def _run_of(marker: Path) -> str | None:
    """Which run a marker is of, if there is one."""
    try:
        found = json.loads(marker.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found.get("run") if isinstance(found, dict) else None
