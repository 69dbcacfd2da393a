"""The datasets of files and archives, and ``open``, which chooses among all datasets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Self, Unpack

import pyarrow as pa

from headrace.access import Backend
from headrace.errors import OptionError
from headrace.loader._dataloader import StatefulLoader
from headrace.loader._dataset import TabularDataset, found_in, store_access
from headrace.loader._tables import IcebergDataset, LanceDataset, PaimonDataset
from headrace.loader._tar import TarDataset
from headrace.options import (
    ArrayRecordOptions,
    ArrowOptions,
    DatasetOptions,
    FileFormat,
    LoaderOptions,
    OpenOptions,
    PathLike,
    StructuredOptions,
    VideoFramesOptions,
    arguments,
    documented,
    resolve,
)
from headrace.sources.array_record.backend import ArrayRecordBackend
from headrace.sources.array_record.files import RecordPaths as ArrayRecordPaths
from headrace.sources.arrow.backend import ArrowBackend
from headrace.sources.files.discovery import discover
from headrace.sources.files.schemas import project
from headrace.sources.kind import kind_of
from headrace.sources.source import Discovered, GivenSource, Source
from headrace.sources.video.backend import VideoFramesBackend


class StructuredLoaderOptions(StructuredOptions, LoaderOptions, total=False):
    """Keywords of ``StructuredDataset.create_dataloader``."""


class StructuredDataset(TabularDataset):
    """Rows of Parquet, ORC, CSV, JSON, JSONL or Arrow files.

    Making it lists the files and looks once into each of them (at a footer, or a first block).

    Folders of tables (Delta Lake, Hudi, Iceberg, Lance, Paimon) are refused, and so are parts of
    them, because their files hold deleted rows. ``as_files=True`` reads them nevertheless.

    Examples:
        ```python
        from headrace import StructuredDataset

        loader, dataset = StructuredDataset.create_dataloader(
            "data/", columns=["x", "y"], batch_size=1024, shuffle=True
        )
        for batch in loader:
            x, y = batch["x"], batch["y"]
        ```
    """

    @documented(StructuredOptions)
    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        format: FileFormat | None = None,
        **options: Unpack[StructuredOptions],
    ) -> None:
        """Find the files and their schema.

        Args:
            path: A file, directory or glob (also ``[01]``, ``**``), or a list of them.
            format: ``parquet``, ``orc``, ``csv``, ``json``, ``jsonl`` or ``arrow``; None to choose
                it by the extensions, or by the first bytes of files whose extension is not known.

        Raises:
            NothingFoundError: There is no data file.
            SchemaError: Columns or types of the files do not fit together.
            OptionError: The path is a folder of a table, or a keyword has a wrong value.
        """
        chosen = resolve(StructuredOptions, options)
        found = discover(
            path,
            format,
            access=store_access(chosen),
            skip_broken=chosen["on_error"] == "skip",
            **arguments(discover, chosen),
        )
        super().__init__(found, chosen)

    @classmethod
    @documented(StructuredOptions, LoaderOptions)
    def create_dataloader(
        cls,
        path: PathLike | Sequence[PathLike],
        format: FileFormat | None = None,
        **options: Unpack[StructuredLoaderOptions],
    ) -> tuple[StatefulLoader, Self]:
        """Return a DataLoader over the files, and the dataset behind it.

        In a distributed job each rank gets its share. The rank and the number of ranks come from
        ``rank`` and ``world_size``, from ``process_group`` or ``device_mesh`` (its data-parallel
        dimensions), from ``accelerator``, from an initialised ``torch.distributed``, or from the
        environment variables of the launcher.

        Args:
            path: A file, directory or glob (also ``[01]``, ``**``), or a list of them.
            format: The format of the files; None to choose it by their extensions or first bytes.

        Returns:
            The loader and the dataset.

        Raises:
            NothingFoundError: There is no data file.
            SchemaError: Columns or types of the files do not fit together.
            OptionError: The path is a folder of a table, or a keyword has a wrong value.
        """
        return cls._create(path, format, **options)


class SourceLoaderOptions(DatasetOptions, LoaderOptions, total=False):
    """Keywords of ``SourceDataset.create_dataloader``."""


class SourceDataset(TabularDataset):
    """Rows of the user's own source: any object with ``schema``, ``files`` and ``read``.

    Order, ranks, workers, filters, resume and statistics work as for all other sources.
    ``headrace.Source`` describes these three members.

    Examples:
        ```python
        import pyarrow as pa
        from headrace import DataFileInfo, RowRange, SourceDataset

        class Numbers:
            schema = pa.schema({"x": pa.int64()})
            files = [DataFileInfo("numbers", record_count=6)]

            def read(self, chunk, schema, block_bytes):
                rows = chunk.row_range or RowRange(0, 6)
                yield pa.table({"x": range(rows.offset, rows.stop)})

        loader, dataset = SourceDataset.create_dataloader(Numbers(), batch_size=2, shuffle=True)
        assert len(loader) == 3
        ```
    """

    @documented(DatasetOptions)
    def __init__(self, source: Source, **options: Unpack[DatasetOptions]) -> None:
        """Take the columns and files of a source.

        Args:
            source: The source. It must be picklable if worker processes read it.

        Raises:
            OptionError: The source lacks a member, or a keyword has a wrong value.
        """
        chosen = resolve(DatasetOptions, options)
        for name in ("schema", "files", "read"):
            if not hasattr(source, name):
                raise OptionError(f"a source has schema, files and read; {source!r} has no {name}")
        output = project(source.schema, chosen["columns"])
        found = Discovered.of(GivenSource(source), output, filters=chosen["filters"])
        super().__init__(found, chosen)

    @classmethod
    @documented(DatasetOptions, LoaderOptions)
    def create_dataloader(
        cls, source: Source, **options: Unpack[SourceLoaderOptions]
    ) -> tuple[StatefulLoader, Self]:
        """Return a DataLoader over the rows of a source, and the dataset behind it.

        Args:
            source: The source. It must be picklable if worker processes read it.

        Returns:
            The loader and the dataset.
        """
        return cls._create(source, **options)


class BackendDataset(TabularDataset):
    """Batches of the rows of a backend; ``rows`` gives the same rows by index."""

    def __init__(self, backend: Backend, options: DatasetOptions) -> None:
        """Stream a backend."""
        super().__init__(found_in(backend, options), options)


class ArrowLoaderOptions(ArrowOptions, LoaderOptions, total=False):
    """Keywords of ``ArrowDataset.create_dataloader``."""


class ArrowDataset(BackendDataset):
    """Rows of Arrow IPC files and streams, or of a table in memory.

    ``rows`` gives them by index. Files with different columns or types are converted to one schema.

    Examples:
        >>> table = pa.table({"x": range(6)})
        >>> loader, dataset = ArrowDataset.create_dataloader(table, batch_size=3)
        >>> [batch["x"].tolist() for batch in loader]
        [[0, 1, 2], [3, 4, 5]]
        >>> int(dataset.rows[-1]["x"])
        5
    """

    @documented(ArrowOptions)
    def __init__(
        self,
        source: PathLike | Sequence[PathLike] | pa.Table,
        **options: Unpack[ArrowOptions],
    ) -> None:
        """Open files, or take a table.

        Args:
            source: Files, directories or globs, or a table in memory.

        Raises:
            NothingFoundError: There is no Arrow file.
        """
        chosen = resolve(ArrowOptions, options)
        given = arguments(ArrowBackend, chosen)
        if isinstance(source, pa.Table):
            backend = ArrowBackend(table=source, **given)
        else:
            backend = ArrowBackend(source, access=store_access(chosen), **given)
        super().__init__(backend, chosen)

    @classmethod
    @documented(ArrowOptions, LoaderOptions)
    def create_dataloader(
        cls,
        source: PathLike | Sequence[PathLike] | pa.Table,
        **options: Unpack[ArrowLoaderOptions],
    ) -> tuple[StatefulLoader, Self]:
        """Return a DataLoader over the rows, and the dataset behind it.

        Args:
            source: Files, directories or globs, or a table in memory.

        Returns:
            The loader and the dataset.
        """
        return cls._create(source, **options)


class ArrayRecordLoaderOptions(ArrayRecordOptions, LoaderOptions, total=False):
    """Keywords of ``ArrayRecordDataset.create_dataloader``."""


class ArrayRecordDataset(BackendDataset):
    """Rows of ArrayRecord files, which workers share by ranges of records, and not by files.

    ``decode`` says what a record holds, unless this library packed it.

    Examples:
        ```python
        from headrace import ArrayRecordDataset
        from headrace.write import write_array_record

        write_array_record("data/", "train.array_record")
        loader, dataset = ArrayRecordDataset.create_dataloader(
            "train.array_record", batch_size=100, shuffle=True
        )
        assert len(loader) == 100
        ```
    """

    backend: ArrayRecordBackend
    """The backend that gives records by their number."""

    @documented(ArrayRecordOptions)
    def __init__(self, paths: ArrayRecordPaths, **options: Unpack[ArrayRecordOptions]) -> None:
        """Open files.

        Args:
            paths: Files, directories or globs; ``path[start:stop]`` and ``FileInstruction`` objects
                of TFDS are parts of a file.

        Raises:
            NothingFoundError: There is no such file.
            ReadError: A file is not an ArrayRecord file.
        """
        chosen = resolve(ArrayRecordOptions, options)
        access = store_access(chosen)
        backend = ArrayRecordBackend(paths, access=access, **arguments(ArrayRecordBackend, chosen))
        super().__init__(backend, chosen)

    @classmethod
    @documented(ArrayRecordOptions, LoaderOptions)
    def create_dataloader(
        cls, paths: ArrayRecordPaths, **options: Unpack[ArrayRecordLoaderOptions]
    ) -> tuple[StatefulLoader, Self]:
        """Return a DataLoader over the records, and the dataset behind it.

        Args:
            paths: Files, directories or globs; ``path[start:stop]`` and ``FileInstruction`` objects
                of TFDS are parts of a file.

        Returns:
            The loader and the dataset.
        """
        return cls._create(paths, **options)


class VideoFramesLoaderOptions(VideoFramesOptions, LoaderOptions, total=False):
    """Keywords of ``VideoFramesDataset.create_dataloader``."""


class VideoFramesDataset(BackendDataset):
    """Batches of windows of frames, of a Lance data set that has one encoded frame a row.

    The version of the data set is chosen when this is made; a state goes on only in the same
    version and with the same windows. ``on_error="skip"`` leaves out exactly the windows that have
    a frame which cannot be decoded.

    Examples:
        ```py
        loader, dataset = VideoFramesDataset.create_dataloader(
            "frames.lance", window_length=16, hop_size=4, batch_size=8, shuffle=True
        )
        assert next(iter(loader))["video"].shape == (8, 16, 48, 64, 3)
        ```
    """

    @documented(VideoFramesOptions)
    def __init__(self, uri: PathLike, **options: Unpack[VideoFramesOptions]) -> None:
        """Open a Lance data set of frames.

        Args:
            uri: Its path or URL, as ``headrace.write.write_video_frames`` was given.

        Raises:
            OptionError: No video is as long as a window.
            SchemaError: The data set does not hold frames of videos.
        """
        chosen = resolve(VideoFramesOptions, options)
        backend = VideoFramesBackend(uri, **arguments(VideoFramesBackend, chosen))
        backend.skips_broken = chosen["on_error"] == "skip"
        super().__init__(backend, chosen)

    @classmethod
    @documented(VideoFramesOptions, LoaderOptions)
    def create_dataloader(
        cls, uri: PathLike, **options: Unpack[VideoFramesLoaderOptions]
    ) -> tuple[StatefulLoader, Self]:
        """Return a DataLoader over the windows of a data set, and the dataset behind it.

        Args:
            uri: The path or URL of the Lance data set.

        Returns:
            The loader and the dataset.
        """
        return cls._create(uri, **options)


# --- open


_OF_OPTION: dict[str, type[TabularDataset]] = {
    "catalog_config": IcebergDataset,
    "catalog_options": PaimonDataset,
    "window_length": VideoFramesDataset,
    "frame_skip": VideoFramesDataset,
    "hop_size": VideoFramesDataset,
    "min_video_frames": VideoFramesDataset,
    "layout": VideoFramesDataset,
}


@documented(OpenOptions, checks=False)
def open_dataset(
    location: PathLike | Sequence[PathLike], **options: Unpack[OpenOptions]
) -> TabularDataset:
    """Return the dataset for the data at a location, with the keywords of that dataset.

    Lance tables, ArrayRecord files and tars are recognised by their names or by the files in their
    directory; a remote directory that holds tars has to be opened as ``TarDataset``. With
    ``catalog_config`` the location is an Iceberg table, with ``catalog_options`` a Paimon table,
    and with windows (``window_length``, ``hop_size``, ``frame_skip``) video frames. Everything else
    is read as tabular files, whose format follows from their extensions or first bytes. Folders of
    other tables are refused, unless ``as_files=True`` says to read them as tabular files.

    Args:
        location: A path, URL or glob, a list of them, or the name of a table in a catalog.

    Returns:
        The dataset. ``dataset.loader(...)`` makes a loader, ``dataset.rows`` gives rows by index.

    Raises:
        NothingFoundError: There is no data.
        OptionError: A keyword has a wrong value, or is not one of this dataset.

    Examples:
        ```python
        import headrace

        dataset = headrace.open("data/", columns=["id"])
        assert dataset.rows[-1]["id"] == 9_999
        loader = dataset.loader(num_workers=0)
        ```
    """
    given: dict[str, Any] = {**options}  # the dataset refuses those of other kinds of data
    for option, dataset in _OF_OPTION.items():
        if option in given:
            return dataset(location, **given)  # type: ignore[arg-type]
    if isinstance(location, Iterable) and not isinstance(location, str):
        location = list(location)
    named = location if isinstance(location, list) else [location]
    first = named[0] if named else None
    path = os.fspath(first) if isinstance(first, str | os.PathLike) else ""  # refused below
    kind = None if given.get("as_files") else kind_of(path)
    if kind == "lance":
        if len(named) > 1:
            raise OptionError("a Lance table is opened by itself, and not in a list")
        return LanceDataset(path, **given)
    if kind == "array-record":
        return ArrayRecordDataset(location, **given)
    if kind == "tar":
        return TarDataset(location, **given)
    return StructuredDataset(location, **given)
