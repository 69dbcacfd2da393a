"""Datasets by index: the backend that fits what was found, and map-style rows over it."""

from __future__ import annotations

from headrace.access import ArrowBackend, Backend, ParquetBackend, RowDataset
from headrace.access.streaming import BackendRows
from headrace.errors import OptionError
from headrace.formats.discovered import Discovered
from headrace.formats.reader import FormatRows
from headrace.loader.settings import Settings

__all__ = ["backend_of", "rows_of"]


def backend_of(found: Discovered, settings: Settings) -> Backend:
    """What gives the rows that were found by their index, where that can be."""
    rows = found.reader.rows
    if isinstance(rows, BackendRows):
        return rows.backend
    if found.filter is None and isinstance(rows, FormatRows):
        if rows.name == "parquet":
            return ParquetBackend.of(found)
        if rows.name == "arrow" and not len(rows.path_columns.schema):
            return _arrow_backend(found, settings)
    raise OptionError(
        f"{rows.name} has no rows by index here: they can be had of Parquet and Arrow files "
        "(without filters and columns in paths), Lance tables, ArrayRecord files, tars and "
        "video frames; "
        "headrace shuffle-into writes a copy of anything else"
    )


def _arrow_backend(found: Discovered, settings: Settings) -> ArrowBackend:
    """All files are looked into: rows by index have the types that are stored, which must agree."""
    backend = ArrowBackend(found.files.paths, access=settings.access())
    stored = {field.name: field.type for field in backend.schema}
    for field in found.reader.schema:
        if stored.get(field.name) != field.type:
            raise OptionError(
                f"column {field.name!r} is {field.type} in the data set and "
                f"{stored.get(field.name, 'not there')} in its files: rows by index of Arrow files "
                "have the columns and types that are stored; leave out schema=, or write the files "
                "alike"
            )
    return backend


def rows_of(found: Discovered, settings: Settings) -> RowDataset:
    """The columns that the dataset streams, by index and in the same form."""
    if settings.filters is not None:
        raise OptionError("filters are for streams; rows by index are all that there are")
    if settings.finish is not None:
        raise OptionError(
            "transform and collate_fn are called with the batches of streams; for rows give them "
            "to RowDataset(dataset.backend, transform=...) and to your DataLoader"
        )
    return RowDataset(
        backend_of(found, settings),
        columns=settings.columns,
        output_format=settings.output_format,
        nulls=settings.nulls,
        ragged=settings.ragged,
        on_error=settings.on_error,
    )
