"""What an index says of a tar: its members in the order in which they lie, as columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model import Int64Array, computed_once
from headrace.sources.tar.grouping import Grouping, Int32Array, grouped

__all__ = ["SIDECARS", "TarFacts", "TarIndex"]

SIDECARS = frozenset({"json", "txt", "text", "caption", "captions", "cls"})
"""what is said of a payload, and is one itself only where there is nothing else"""
_IMAGES = "jpg jpeg png webp gif bmp tif tiff avif heic jxl"
_SOUND_AND_VIDEO = "mp4 mkv webm mov avi mp3 wav flac ogg opus m4a"
_MEDIA = frozenset(f"{_IMAGES} {_SOUND_AND_VIDEO}".split())
"""what a sample is about before anything else that it has"""


@dataclass(frozen=True, slots=True)
class TarFacts:
    """What an index says of a tar as a whole."""

    size: int | None = None
    """of the tar, in bytes"""
    hash: str | None = None
    hash_lfs: str | None = None
    """SHA-256 of the tar, as git-lfs and the hub name it"""
    has_geometry: bool = False
    last_good: str | None = None
    """of a tar that breaks off, the last member that is whole; all after it is not indexed"""
    has_end: bool = True
    """False: no end mark is behind its last member, and it may have been cut off there"""
    extras: str | None = None
    """all else that a JSON index says, as a JSON object"""
    form: str | None = None
    """how that JSON index words what it says, where not as this library does"""


@dataclass(frozen=True, eq=False)
class TarIndex:
    """The members of one tar. About 40 bytes each, beside names and what is embedded.

    Texts that are not there for a member are null; columns that are there for none are None.
    """

    names: pa.StringArray
    offsets: Int64Array
    """of payloads, not of headers"""
    sizes: Int64Array
    widths: Int32Array | None = None
    """of images, 0 where it is not known"""
    heights: Int32Array | None = None
    captions: pa.StringArray | None = None
    """JSON text: a string, or a list of strings"""
    json: pa.StringArray | None = None
    """the text of the JSON sidecar of a member, embedded"""
    sha256: pa.StringArray | None = None
    extras: pa.StringArray | None = None
    """what else a JSON index says of the member, as a JSON object"""
    unlisted: npt.NDArray[np.bool_] | None = None
    """members that are known only because others name them as their sidecars"""
    facts: TarFacts = field(default_factory=TarFacts)
    stored_grouping: Grouping | None = None
    stored_shape_order: Int32Array | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @computed_once
    def grouping(self) -> Grouping:
        """Which sample each member belongs to."""
        return self.stored_grouping or grouped(self.names)

    @property
    def num_samples(self) -> int:
        return self.grouping.count

    @computed_once
    def sample_members(self) -> tuple[Int64Array, Int32Array]:
        """Where the members of each sample begin in the second array, and all of those members."""
        samples = self.grouping.samples
        order = np.argsort(samples, kind="stable").astype(np.int32)
        order = order[np.count_nonzero(samples < 0) :]
        counts = np.bincount(samples[order], minlength=self.num_samples)
        starts: Int64Array = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        return starts, order

    @computed_once
    def primary_members(self) -> Int32Array:
        """The member that each sample is about: its first image, video or sound.

        Without one it is the first that is no sidecar, else the first. Masks and maps beside an
        image (``seg.png``) are no images here, for they have a second extension.
        """
        starts, members = self.sample_members
        if not len(members):
            return members
        ranks = np.array([_rank(name) for name in self.grouping.field_names], np.int8)
        rank = ranks[self.grouping.fields[members]]
        order = np.lexsort((np.arange(len(members)), rank, self.grouping.samples[members]))
        return members[order[starts[:-1]]]

    def members_as(self, name: str) -> Int32Array:
        """The member of each sample that is this field of it; -1 where it has none."""
        found = np.full(self.num_samples, -1, np.int32)
        if name in self.grouping.field_names:
            code = self.grouping.field_names.index(name)
            members = np.flatnonzero(self.grouping.fields == code).astype(np.int32)
            found[self.grouping.samples[members]] = members
        return found

    @computed_once
    def shape_members(self) -> Int32Array:
        """The member whose shape each sample has: the one that it is about, if its shape is known.

        Else it is the first whose shape is known, if there is one.
        """
        primary = self.primary_members
        if self.widths is None or self.heights is None or not len(primary):
            return primary
        known = (self.widths > 0) & (self.heights > 0)
        if known[primary].all():
            return primary
        _, members = self.sample_members
        members = members[known[members]]
        samples, first = np.unique(self.grouping.samples[members], return_index=True)
        lacking = ~known[primary[samples]]
        found = primary.copy()
        found[samples[lacking]] = members[first[lacking]]
        return found

    @computed_once
    def shape_order(self) -> Int32Array:
        """Samples whose shape is known, by aspect, width and height: buckets are runs of these."""
        if self.stored_shape_order is not None:
            return self.stored_shape_order
        if self.widths is None or self.heights is None:
            return np.empty(0, np.int32)
        members = self.shape_members
        width, height = self.widths[members], self.heights[members]
        known = np.flatnonzero((width > 0) & (height > 0)).astype(np.int32)
        width, height = width[known], height[known]
        return known[np.lexsort((height, width, width / height))]

    @computed_once
    def unchecked(self) -> npt.NDArray[np.bool_]:
        """Which members were not compared with the headers of the tar yet."""
        return np.ones(len(self), bool)

    def name(self, member: int) -> str:
        text: str = self.names[member].as_py()
        return text

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("an index does not travel: the process that needs it loads it")


def _rank(field: str) -> int:
    """How soon a sample is about a member that is this field of it."""
    if field in _MEDIA:
        return 0
    return 2 if field.rpartition(".")[2] in SIDECARS else 1
