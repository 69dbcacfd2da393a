"""The words of the library: files, chunks of their rows, and lanes of chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar, overload, runtime_checkable

import numpy as np
import numpy.typing as npt

LARGEST_BLOCKS = 2
"""Largest size of a piece, in blocks, that is not worth cutting."""

Int64Array = npt.NDArray[np.int64]


class Cursor(NamedTuple):
    """A position in a lane.

    Attributes:
        window: Index of the window that is being delivered.
        row: Number of rows of that window that have been delivered.
    """

    window: int = 0
    row: int = 0


START = Cursor()
"""Cursor before the first row of a lane."""
NOWHERE = Cursor(-1)
"""Cursor before the first window that a stream takes, whatever its number."""

T = TypeVar("T")


class computed_once(Generic[T]):
    """An attribute that is computed when it is first asked for.

    Like ``functools.cached_property``, but without the lock that Python 3.11 shares among all
    instances: if a process forks while another thread holds it, the child waits for it forever.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        value = self._compute(instance)
        return instance.__dict__.setdefault(self._name, value)


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows ``offset`` to ``offset + length`` of a file, by physical position.

    Attributes:
        offset: The first row.
        length: Number of rows.

    Examples:
        >>> RowRange(offset=100, length=50).stop
        150
    """

    offset: int
    length: int

    @property
    def stop(self) -> int:
        """The row after the last."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The lines of a file whose first byte lies in ``offset`` to ``offset + length``.

    Attributes:
        offset: The first byte.
        length: Number of bytes.

    Examples:
        >>> ByteRange(offset=0, length=4096).stop
        4096
    """

    offset: int
    length: int

    @property
    def stop(self) -> int:
        """The byte after the last."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True, eq=False)
class RowGroups:
    """The runs of rows a file is stored in, as columns; runs ruled out by a filter are left out.

    Attributes:
        start: First row of each group, ascending.
        rows: Number of rows of each group.
        size_bytes: Uncompressed size of each group in bytes, all columns together.

    Examples:
        >>> groups = RowGroups.of(rows=[100, 50], size_bytes=[4000, 2000])
        >>> groups.start.tolist(), groups.keep([1]).rows.tolist()
        ([0, 100], [50])
    """

    start: Int64Array
    rows: Int64Array
    size_bytes: Int64Array

    def __len__(self) -> int:
        return len(self.start)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowGroups) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def of(cls, rows: Iterable[int], size_bytes: Iterable[int]) -> RowGroups:
        """Return groups that follow each other from row 0."""
        counts = np.fromiter(rows, np.int64)
        sizes = np.fromiter(size_bytes, np.int64)
        return cls(np.cumsum(counts) - counts, counts, sizes)

    def overlapping(self, rows: RowRange) -> Int64Array:
        """Return the indices of the groups that hold some of these rows."""
        return np.flatnonzero((self.start + self.rows > rows.offset) & (self.start < rows.stop))

    def keep(self, groups: Sequence[int]) -> RowGroups:
        """Return the groups with these indices."""
        index = np.asarray(groups, np.int64)
        return RowGroups(self.start[index], self.rows[index], self.size_bytes[index])


@dataclass(frozen=True, slots=True)
class DataFileInfo:
    """Describes a data file, with all that planning needs.

    Attributes:
        path: The path or URL, which no other file of the data has.
        file_size: Size of the file in bytes, as listed.
        record_count: Number of rows in the file; None if it is not known without reading the file.
        row_groups: Row groups (stripes, record batches) to read; None if the file has none.
        etag: Identity of the content: an etag, or the time of the last change.
        body_offset: Position of the first byte after the header, in a file that is cut by bytes.
        splittable: False if only the whole file can be read, such as compressed text.

    Examples:
        >>> DataFileInfo("part-0.parquet", record_count=250).record_count
        250
    """

    path: str
    file_size: int | None = None
    record_count: int | None = None
    row_groups: RowGroups | None = None
    etag: str | None = None
    body_offset: int = 0
    splittable: bool = True

    @property
    def identity(self) -> tuple[str, int | None, str | None]:
        """Path, size and tag, which no two versions of a file share: the key of caches."""
        return self.path, self.file_size, self.etag


@dataclass(frozen=True, slots=True)
class IcebergDataFileInfo(DataFileInfo):
    """A data file of an Iceberg table.

    Attributes:
        partition: Partition values by field name.
        snapshot_id: Id of the snapshot that is read.

    Examples:
        A strategy of your own finds them in its files:

        >>> file = IcebergDataFileInfo("part-0.parquet", partition={"day": 7}, snapshot_id=1)
        >>> file.partition["day"]
        7
    """

    partition: dict[str, Any] | None = None
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True)
class FileSplit:
    """A chunk: some rows of one file, or all of them.

    Attributes:
        file: The file.
        row_range: Rows of the chunk, by physical position; None for all rows, or those of
            ``byte_range``.
        byte_range: Byte range of the chunk, in a file of lines whose rows are not counted.

    Examples:
        >>> print(FileSplit(DataFileInfo("part-0.parquet"), RowRange(100, 50)))
        part-0.parquet, rows 100-150
    """

    file: DataFileInfo
    row_range: RowRange | None = None
    byte_range: ByteRange | None = None

    def __str__(self) -> str:
        if self.row_range is not None:
            return f"{self.file.path}, rows {self.row_range.offset}-{self.row_range.stop}"
        if self.byte_range is not None:
            return f"{self.file.path}, bytes {self.byte_range.offset}-{self.byte_range.stop}"
        return self.file.path


@dataclass(frozen=True, slots=True)
class Split:
    """A lane: an ordered list of chunks with one reader at a time.

    Attributes:
        id: Number of the lane.
        file_splits: The chunks, in the order in which they are read.
        row_count: Number of rows before filtering, if known.
        size_bytes: Uncompressed size in bytes, if known.

    Examples:
        >>> file = DataFileInfo("part-0.parquet", record_count=250)
        >>> Split(0, [FileSplit(file)], row_count=250).row_count
        250
    """

    id: int
    file_splits: Sequence[FileSplit]
    row_count: int | None = None
    size_bytes: int | None = None


@runtime_checkable
class SplitStrategy(Protocol):
    """Turns files into lanes; any object with this method is a strategy.

    A loader takes one as ``split_strategy=``, and checks that its lanes hold every row once.

    Examples:
        >>> class BiggestFirst:
        ...     def generate(self, files, num_workers, epoch):
        ...         ordered = sorted(files, key=lambda file: -file.record_count)
        ...         lanes = [ordered[lane::num_workers] for lane in range(num_workers)]
        ...         return [Split(id, [*map(FileSplit, lane)]) for id, lane in enumerate(lanes)]
        >>> files = [DataFileInfo("a", record_count=5), DataFileInfo("b", record_count=9)]
        >>> [chunk.file.path for chunk in BiggestFirst().generate(files, 1, 0)[0].file_splits]
        ['b', 'a']
    """

    def generate(
        self, files: Sequence[DataFileInfo], num_workers: int, epoch: int
    ) -> Sequence[Split]:
        """Return the lanes of an epoch, which together hold every row exactly once.

        Args:
            files: The files, sorted by path.
            num_workers: Number of lanes.
            epoch: Number of the epoch, from 0 on.

        Returns:
            A Split for each lane; lanes that are left out at the end are empty.
        """
        ...


class FileList(Sequence[DataFileInfo]):
    """Many files in few objects: columns inside, and a DataFileInfo made for each file on request.

    A list of 100,000 files with a million row groups pickles as a handful of arrays.
    """

    __slots__ = (
        "_originals",
        "body_offsets",
        "counts",
        "etags",
        "group_bounds",
        "groups",
        "paths",
        "sizes",
        "splittable",
    )

    def __init__(self, files: Iterable[DataFileInfo] = ()) -> None:
        listed = list(files)
        self.paths: list[str] = []
        self.etags: list[str | None] = []
        self._originals: list[DataFileInfo] | None = None
        columns: list[tuple[Any, ...]] = []
        none = np.empty(0, np.int64)
        starts, lengths, widths = [none], [none], [none]
        first = 0
        for file in listed:
            self.paths.append(file.path)
            self.etags.append(file.etag)
            if type(file) is not DataFileInfo:
                self._originals = listed
            groups = file.row_groups
            count = -1 if groups is None else len(groups.start)
            size = -1 if file.file_size is None else file.file_size
            rows = -1 if file.record_count is None else file.record_count
            columns.append((size, rows, file.body_offset, file.splittable, first, count))
            if groups is not None:
                starts.append(groups.start)
                lengths.append(groups.rows)
                widths.append(groups.size_bytes)
                first += count
        numbers: Int64Array = np.array(columns, np.int64).reshape(-1, 6)
        self.sizes: Int64Array = numbers[:, 0].copy()
        self.counts: Int64Array = numbers[:, 1].copy()
        self.body_offsets: Int64Array = numbers[:, 2].copy()
        self.splittable: npt.NDArray[np.bool_] = numbers[:, 3].astype(bool)
        self.group_bounds: Int64Array = numbers[:, 4:].copy()
        self.groups = RowGroups(*map(np.concatenate, (starts, lengths, widths)))

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> DataFileInfo: ...
    @overload
    def __getitem__(self, index: slice) -> list[DataFileInfo]: ...
    def __getitem__(self, index: int | slice) -> DataFileInfo | list[DataFileInfo]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if self._originals is not None:
            return self._originals[index]
        size, rows = int(self.sizes[index]), int(self.counts[index])
        first, count = self.group_bounds[index]
        groups = None
        if count >= 0:
            part, every = slice(first, first + count), self.groups
            groups = RowGroups(every.start[part], every.rows[part], every.size_bytes[part])
        return DataFileInfo(
            path=self.paths[index],
            file_size=None if size < 0 else size,
            record_count=None if rows < 0 else rows,
            row_groups=groups,
            etag=self.etags[index],
            body_offset=int(self.body_offsets[index]),
            splittable=bool(self.splittable[index]),
        )

    def __repr__(self) -> str:
        return f"<FileList of {len(self)} files>"
