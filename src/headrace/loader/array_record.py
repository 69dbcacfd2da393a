"""``ArrayRecordDataset``: the records of ArrayRecord files, streamed by ranges of records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack

from headrace.access.array_record.backend import ArrayRecordBackend
from headrace.archives.array_record import ReaderOptions
from headrace.archives.record_codecs import Decode
from headrace.convert import Converter
from headrace.formats.discovered import Discovered
from headrace.loader.backend_dataset import BackendDataset
from headrace.loader.creating import LoaderOptions, create_loader
from headrace.loader.dataloader import StatefulLoader
from headrace.loader.options import check_flag
from headrace.loader.settings import DatasetOptions, PathLike, Settings

__all__ = ["ArrayRecordDataset", "ArrayRecordOptions"]


class ArrayRecordOptions(DatasetOptions, LoaderOptions, total=False):
    """Keywords of ``ArrayRecordDataset.create_dataloader``."""

    decode: Decode | None
    reader_options: ReaderOptions | None
    high_memory: bool


class ArrayRecordDataset(BackendDataset):
    """Rows of ArrayRecord files, which workers share by ranges of records, and not by files.

    What a record holds is told by ``decode`` (the name of a codec, a function from bytes to a
    dict, or such a function and a schema), or by records that this library packed. ``high_memory``
    reads a range at once.
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        *,
        decode: Decode | None = None,
        reader_options: ReaderOptions | None = None,
        high_memory: bool = False,
        **options: Unpack[DatasetOptions],
    ) -> None:
        settings = Settings(**options)
        check_flag("high_memory", high_memory)
        backend = ArrayRecordBackend(
            paths,
            decode=decode,
            reader_options=reader_options,
            high_memory=high_memory,
            access=settings.access(),
            on_error=settings.on_error,
        )
        super().__init__(backend, "array_record", settings)

    def _read_from(self, found: Discovered) -> None:
        """Bytes are copied from records when batches are cut, and not before.

        Not where tables are filtered, or kept for later: what Arrow copies must hold its bytes.
        """
        super()._read_from(found)
        settings, reader = self._settings, self.pipeline.reader
        cut_from_arrow = settings.output_format not in ("torch", "numpy")
        if cut_from_arrow or reader.filter is not None or reader.cache_bytes:
            return
        schema, kinds = self.backend.held(reader.schema)
        converter = Converter(
            schema,
            settings.output_format,
            nulls=settings.nulls,
            ragged=settings.ragged,
            kinds=kinds,
        )
        reader = replace(reader, schema=schema, read_schema=schema)
        self.pipeline = replace(self.pipeline, reader=reader, converter=converter)

    @property
    def backend(self) -> ArrayRecordBackend:
        """What gives records by their number."""
        backend = super().backend
        assert isinstance(backend, ArrayRecordBackend)
        return backend

    @classmethod
    def create_dataloader(
        cls, paths: PathLike | Sequence[PathLike], **options: Unpack[ArrayRecordOptions]
    ) -> tuple[StatefulLoader, ArrayRecordDataset]:
        """A DataLoader over the records, and the dataset behind it.

        See ``StructuredDataset.create_dataloader`` for workers and ranks.
        """
        return create_loader(partial(cls, paths), options)
