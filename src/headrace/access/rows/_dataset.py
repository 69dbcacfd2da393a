"""`RowDataset`: rows of a backend by index, as a map-style dataset of torch."""

from __future__ import annotations

import math
import operator
import os
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

from headrace.access.rows._batch import Row, RowBatch, register_collate
from headrace.access.rows._reader import RowForm, RowReader, named_decoders
from headrace.access.rows._tables import (
    Part,
    RowFunction,
    gathered,
    in_parts,
    joined,
    mapped,
    rows_matching,
    rows_that,
    with_column,
    write_shards,
)
from headrace.access.rows._views import View
from headrace.convert.kinds import Kinds
from headrace.convert.shared import shared_integers
from headrace.errors import OptionError, ReadError, SchemaError, SkippedDataWarning, no_column
from headrace.options import checked_keywords, whole_number
from headrace.process import end_with_parent
from headrace.sources.arrow.backend import ArrowBackend
from headrace.sources.backend import Backend, Indices, StorageBackend, checked_indices
from headrace.sources.files.filters import columns_of, settle_filter, to_expression

_ITERATED_ROWS = 256
"""Number of rows that an iteration reads together."""
_COUNTERS = 256
"""Number of counters, enough for worker processes to count without waiting for each other."""


@checked_keywords
class RowDataset(Dataset[Any]):
    """The rows of a backend, by index and in any order.

    ``rows[i]`` is a row, ``rows[a:b]`` a view, ``rows[[3, 1]]`` a batch (as is ``rows[mask]``),
    ``rows["x"]`` a column of all rows. A plain ``DataLoader`` over it reads and converts each of
    its batches at once, in columns; the user's own ``collate_fn`` gets rows.

    A dataset is a view: some rows of a backend in some order, some of its columns under some names,
    a format and a transform. All methods that choose among these copy nothing and return another
    view. ``flatten``, ``add_column`` and ``map`` copy.

    Args:
        backend: The backend, such as ``ArrowBackend(...)``.
        columns: The columns that are read, in this order.
        output_format: "torch", "numpy", "arrow" or "dict", as in all loaders, or "raw": Python
            values as they are stored, with nothing decoded.
        nulls: The values of nulls, as in all loaders.
        ragged: The form of columns of lists of different lengths, as in all loaders. A single row
            always has just its own values.
        decode: Columns of encoded images, which become uint8 [3, H, W], or functions by column.
        transform: A function that is called with each row.
        on_error: With "skip", rows that cannot be read or decoded are left out of batches, counted
            in ``skipped`` and named in a SkippedDataWarning. A single row, as in ``rows[i]``,
            raises an error nevertheless.
    """

    def __init__(
        self,
        backend: StorageBackend,
        *,
        columns: Sequence[str] | None = None,
        output_format: str = "torch",
        nulls: str | Mapping[str, Any] | None = None,
        ragged: str = "list",
        decode: object = None,
        transform: Callable[[Any], Any] | None = None,
        on_error: str = "raise",
    ) -> None:
        super().__init__()
        register_collate()
        if not hasattr(backend, "get_row"):
            raise TypeError(
                f"rows need a backend, such as ArrowBackend(...), not {backend!r}; "
                "headrace.open(location).rows finds the one that fits"
            )
        if on_error not in ("raise", "skip"):
            raise OptionError(f'on_error must be "raise" or "skip", not {on_error!r}')
        _check_transform(transform)
        named = None if columns is None else _identity(columns)
        if named is not None and isinstance(backend, Backend):
            backend = backend.narrowed([*named])
            named = _identity(backend.projected([*named]).names)
        form = RowForm(
            columns=named,
            output_format=output_format,
            nulls=nulls,
            ragged=ragged,
            decode=named_decoders(decode),
        )
        self._reader = RowReader(backend, form)
        self._view = View(backend.num_rows)
        self._transform = transform
        self._skipped = shared_integers(_COUNTERS) if on_error == "skip" else None
        self._may_give_none = False

    # --- properties

    @property
    def backend(self) -> StorageBackend:
        """The backend from which rows are read."""
        return self._reader.backend

    @property
    def schema(self) -> pa.Schema:
        """Columns and their Arrow types, as they are stored."""
        return self._reader.schema

    @property
    def column_names(self) -> list[str]:
        """Names of the columns that are read."""
        return list(self.schema.names)

    @property
    def num_rows(self) -> int:
        """Number of rows of this view."""
        return self._view.count

    @property
    def is_whole(self) -> bool:
        """True if these are all rows of the backend, in its order."""
        return self._view.is_run and len(self) == self._view.total

    def whole_backend(self, what: str) -> StorageBackend:
        """Return the backend, if these are all its rows.

        Args:
            what: The request that only a whole backend can answer, for the error message.
        """
        if not self.is_whole:
            raise OptionError(
                f"a view of {len(self)} of {self.backend.num_rows} rows has no {what}: give the "
                f"rows that it is a view of, or {what} as numbers"
            )
        return self.backend

    @property
    def kinds(self) -> Kinds:
        """The kinds of columns that the backend has decoded, if their types do not tell them."""
        return self._reader.kinds

    @property
    def skipped(self) -> int:
        """Number of rows left out so far, in all views of these rows and in workers."""
        return 0 if self._skipped is None else int(self._skipped.sum())

    def __len__(self) -> int:
        return self._view.count

    def __repr__(self) -> str:
        return f"<RowDataset: {len(self):,} rows of {', '.join(self.column_names)}>"

    # --- rows

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int:
            return self._row(index)
        if isinstance(index, slice):
            return self._with(view=self._view.sliced(index))
        if isinstance(index, str):
            return self._column(index)
        if isinstance(index, _MANY) and np.ndim(index):
            return self.batch(np.asarray(index))
        try:
            place = operator.index(index)
        except TypeError:
            raise TypeError(
                "rows are named by an integer, a slice, a list of integers or a mask, and columns "
                f"by their name, not by {index!r}"
            ) from None
        return self._row(place)

    def _row(self, place: int) -> Any:
        if get_worker_info() is not None:
            end_with_parent()
        row = self._view.row(place)
        made = self._reader.row(row)
        if made is None:
            made = _plain(self._reader.read(np.array([row]), skip=False)[0][0])
        return made if self._transform is None else self._transform(made)

    def __setstate__(self, state: dict[str, Any]) -> None:
        register_collate()  # a worker process collates as well
        self.__dict__.update(state)

    def __getitems__(self, indices: Indices) -> Any:
        """Return the rows of a batch, with one read and one conversion, for loaders of torch."""
        batch = self._some_of(indices)
        return batch if self._transform is None else batch.transformed(self._finished)

    def batch(self, indices: Indices) -> Any:
        """Return rows in columns, as a loader collates them."""
        if self._transform is not None and len(indices):
            return default_collate(self.__getitems__(indices))
        return self._some_of(indices).columns

    def table(self, indices: Indices) -> pa.Table:
        """Return rows as a table of stored values, neither decoded nor transformed."""
        return self._reader.table(self._view.at(checked_indices(indices, self._view.count)))

    def _column(self, name: str) -> Any:
        """Return a column of all rows, without ``transform``."""
        alone = self.with_transform(None).select_columns([name])
        return alone.batch(np.arange(len(self)))[name]

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), _ITERATED_ROWS):
            places = np.arange(start, min(start + _ITERATED_ROWS, len(self)))
            yield from map(self._finished, self._read(places, skip=self._skipped is not None))

    def _some_of(self, indices: Indices) -> RowBatch:
        """Return a batch without broken rows; torch cannot collate it if none is left."""
        batch = self._read(indices, skip=self._skipped is not None)
        if len(indices) and not len(batch) and not self._may_give_none:
            raise ReadError(
                f"none of the {len(indices)} rows of a batch can be read: warnings name each of "
                f"them, and one is row {indices[0]} of this view"
            )
        return batch

    def _read(self, indices: Indices, *, skip: bool) -> RowBatch:
        if get_worker_info() is not None:
            end_with_parent()
        rows = self._view.at(checked_indices(indices, self._view.count))
        batch, broken = self._reader.read(rows, skip=skip)
        if broken:
            self._count(broken)
        return batch

    def _finished(self, row: Any) -> Any:
        return _plain(row) if self._transform is None else self._transform(_plain(row))

    def _count(self, broken: Sequence[str]) -> None:
        assert self._skipped is not None
        info = get_worker_info()
        self._skipped[0 if info is None else 1 + info.id % (_COUNTERS - 1)] += len(broken)
        for reason in broken:
            warnings.warn(f"skipped: {reason}", SkippedDataWarning, stacklevel=4)

    # --- views: which rows

    def select(self, indices: Indices | range) -> RowDataset:
        """Return rows by their indices, in this order and as often as given, or by a mask."""
        return self._with(view=self._view.selected(indices))

    def shuffle(self, seed: int) -> RowDataset:
        """Return all rows in a random order that follows from the seed, and takes no memory."""
        return self._with(view=self._view.shuffled(seed))

    def skip(self, n: int) -> RowDataset:
        """Return all rows except the first ``n``."""
        return self._sliced(whole_number("n", n, 0), None)

    def take(self, n: int) -> RowDataset:
        """Return the first ``n`` rows, or all if there are fewer."""
        return self._sliced(0, whole_number("n", n, 0))

    def shard(self, num_shards: int, index: int, contiguous: bool = True) -> RowDataset:
        """Return one of several parts of equal size; sizes differ by at most one row.

        Args:
            num_shards: Number of parts.
            index: The part, from 0 on.
            contiguous: If True, a part is a run of rows; else every ``num_shards``-th row.
        """
        if whole_number("index", index, 0) >= whole_number("num_shards", num_shards, 1):
            raise OptionError(f"index must be less than num_shards={num_shards}, not {index}")
        if not contiguous:
            return self._sliced(index, None, num_shards)
        size, more = divmod(len(self), num_shards)
        start = index * size + min(index, more)
        return self._sliced(start, start + size + (index < more))

    def train_test_split(
        self,
        test_size: float | None = None,
        train_size: float | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
    ) -> dict[str, RowDataset]:
        """Return two views of different rows, as ``{"train": ..., "test": ...}``.

        Args:
            test_size: The rows for testing, as a fraction (which is rounded up) or a number. By
                default the rows that ``train_size`` leaves, or a quarter.
            train_size: The rows for training, as a fraction (which is rounded down) or a number.
                By default all others.
            shuffle: If True, rows are chosen at random. Otherwise the last ones are for testing.
            seed: The seed of the choice.

        Examples:
            >>> import pyarrow as pa
            >>> rows = RowDataset(ArrowBackend(table=pa.table({"x": range(10)})))
            >>> {name: len(part) for name, part in rows.train_test_split(test_size=0.2).items()}
            {'train': 8, 'test': 2}
        """
        rows = len(self)
        if test_size is None and train_size is None:
            test_size = 0.25
        train = None if train_size is None else _share("train_size", train_size, rows, math.floor)
        if test_size is None:
            assert train is not None
            test = rows - train
        else:
            test = _share("test_size", test_size, rows, math.ceil)
        train = rows - test if train is None else train
        if train + test > rows or not train or not test:
            raise OptionError(
                f"{rows} rows cannot be split into {train} for training and {test} for testing"
            )
        mixed = self.shuffle(seed) if shuffle else self
        return {"train": mixed.take(train), "test": mixed.skip(rows - test)}

    def filter(
        self,
        function: Callable[..., Any] | ds.Expression | Sequence[Any],
        *,
        with_indices: bool = False,
        input_columns: str | Sequence[str] | None = None,
        batched: bool = False,
        batch_size: int = 1000,
    ) -> RowDataset:
        """Return the rows for which a function returns True, or that an expression keeps.

        All rows are read once, now.

        Args:
            function: Called with each row, as a dict of stored Python values; or a filter as in all
                loaders: a pyarrow expression, or a list of (column, operator, value).
            with_indices: If True, it is also called with the index of the row.
            input_columns: Columns that it is called with, one argument each, in place of a dict.
                No others are read.
            batched: If True, it is called with a dict of lists, and returns a list.
            batch_size: Number of rows that are read together.
        """
        if not callable(function):
            keep = to_expression(function)
            if keep is None:
                return self
            keep = settle_filter(keep, self.schema)
            needed = self.select_columns(columns_of(keep, self.schema))
            return self.select(rows_matching(needed._parts(batch_size), keep))
        calls = self._row_function(function, batched, with_indices, input_columns)
        needed = self if input_columns is None else self.select_columns(calls.input_columns or ())
        return self.select(rows_that(needed._parts(batch_size), calls))

    # --- views: columns, format, transform

    def select_columns(self, columns: Sequence[str]) -> RowDataset:
        """Return only these columns, in this order; others are not read."""
        names = _identity(columns)
        self._checked(list(names))
        return self._named(names)

    def remove_columns(self, columns: str | Sequence[str]) -> RowDataset:
        """Return all columns except these."""
        gone = self._checked([columns] if isinstance(columns, str) else columns)
        return self._named(_identity([name for name in self.column_names if name not in gone]))

    def rename_column(self, old: str, new: str) -> RowDataset:
        """Return the same columns, one of them under another name."""
        return self.rename_columns({old: new})

    def rename_columns(self, names: Mapping[str, str]) -> RowDataset:
        """Return the same columns, some of them under other names; keys are the current names."""
        self._checked(list(names))
        made = {name: names.get(name, name) for name in self.column_names}
        for name in names.values():
            if list(made.values()).count(name) > 1:
                raise SchemaError(f"there is a column {name!r} already; rename it first")
        return self._named(made)

    def with_format(self, output_format: str) -> RowDataset:
        """Return the same rows as "torch", "numpy", "arrow", "dict" or "raw".

        Arrow, dicts and raw rows keep nulls and lists, and Arrow and raw rows keep the bytes of
        images, whatever the options say.
        """
        return self._with(form=self._reader.form.formatted(output_format))

    def with_transform(self, transform: Callable[[Any], Any] | None) -> RowDataset:
        """Return the same rows with a function that is called with each row; None removes it."""
        _check_transform(transform)
        made = copy(self)
        made._transform = transform
        return made

    def with_empty_batches(self) -> RowDataset:
        """Return the same rows for a loader that can handle a batch of no rows."""
        made = copy(self)
        made._may_give_none = True
        return made

    def _sliced(self, start: int, stop: int | None, step: int = 1) -> RowDataset:
        return self._with(view=self._view.sliced(slice(start, stop, step)))

    def _with(self, *, view: View | None = None, form: RowForm | None = None) -> RowDataset:
        made = copy(self)
        if view is not None:
            made._view = view
        if form is not None:
            made._reader = RowReader(self.backend, form)
        return made

    def _named(self, names: Mapping[str, str]) -> RowDataset:
        return self._with(form=self._reader.form.named(names, self.column_names))

    def _checked(self, columns: Sequence[str]) -> list[str]:
        """Return names of columns, all of which exist."""
        names, known = list(columns), self.column_names
        for name in names:
            if name not in known:
                raise no_column(name, known)
        return names

    # --- copies

    def flatten(self) -> RowDataset:
        """Return a copy of the rows in memory, gathered in the order of this view."""
        return self._copied(ArrowBackend(table=gathered(self._reader, self._view)))

    def add_column(self, name: str, values: Any) -> RowDataset:
        """Return a copy in memory with one more column.

        Args:
            name: The name of the column.
            values: A list, an array or a tensor with a value for each row.
        """
        table = gathered(self._reader, self._view)
        return self._copied(ArrowBackend(table=with_column(table, name, values)))

    def map(
        self,
        function: Callable[..., Mapping[str, Any]],
        *,
        with_indices: bool = False,
        input_columns: str | Sequence[str] | None = None,
        batched: bool = False,
        batch_size: int = 1000,
        remove_columns: str | Sequence[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> RowDataset:
        """Return a copy with the columns that a function returns, in place of others or after them.

        Args:
            function: Called with each row, as a dict of stored Python values, neither decoded nor
                transformed. It returns a dict, whose values may also be arrays and tensors.
            with_indices: If True, it is also called with the index of the row.
            input_columns: Columns that it is called with, one argument each, in place of a dict.
            batched: If True, it is called with a dict of lists, and returns one. The lists may have
                another length if all columns that it does not return are removed.
            batch_size: Number of rows that are read together.
            remove_columns: Columns that the copy does not have, unless the function returns them.
            cache_dir: A new folder in which the copy is written as Arrow files, holding only a few
                of its rows in memory at a time. It appears when it is complete. By default the copy
                is in memory.
        """
        removed = [] if remove_columns is None else remove_columns
        removed = self._checked([removed] if isinstance(removed, str) else removed)
        calls = self._row_function(function, batched, with_indices, input_columns)
        made: set[str] = set()
        tables = mapped(self._parts(batch_size), calls, removed, made)
        empty = pa.Table.from_batches([], self.schema).drop_columns(removed)
        if cache_dir is None:
            backend = ArrowBackend(table=joined(tables, empty))
        else:
            backend = ArrowBackend(write_shards(tables, empty, Path(cache_dir).absolute()))
        return self._copied(backend, made)

    def _row_function(
        self,
        function: Callable[..., Any],
        batched: bool,
        with_indices: bool,
        input_columns: str | Sequence[str] | None,
    ) -> RowFunction:
        if isinstance(input_columns, str):
            input_columns = [input_columns]
        if input_columns is not None:
            input_columns = self._checked(input_columns)
        return RowFunction(function, batched, with_indices, input_columns)

    def _parts(self, batch_size: int) -> Iterator[Part]:
        return in_parts(self._reader, self._view, whole_number("batch_size", batch_size, 1))

    def _copied(self, backend: ArrowBackend, made: Container[str] = ()) -> RowDataset:
        """Return a copy of these rows; ``made`` are the new columns."""
        names = [name for name in backend.schema.names if name not in made]
        kinds = {name: kind for name, kind in self.kinds.items() if name in names}
        return self.over(backend.decoded_as(kinds))

    def over(self, backend: Backend) -> RowDataset:
        """Return all rows of another backend, with the options of these rows.

        Options of columns that the backend lacks, or has in another type, are left out.
        """
        known = {field.name: field.type for field in backend.schema}
        kept = [field.name for field in self.schema if known.get(field.name) == field.type]
        made = copy(self)
        made._reader = RowReader(backend, self._reader.form.over(kept, self.column_names))
        made._view = View(backend.num_rows)
        return made


_MANY = (list, tuple, range, np.ndarray, torch.Tensor, pa.Array, pa.ChunkedArray)


def _plain(row: Any) -> Any:
    """Return a row as the user gets it; a row of a batch is a dict of another class."""
    return dict(row) if isinstance(row, Row) else row


def _identity(columns: Sequence[str]) -> dict[str, str]:
    """Return columns under their own names, after checking the names."""
    if isinstance(columns, str):
        raise OptionError(f"columns must be a list of names, not {columns!r}")
    names = list(columns)
    if len(set(names)) < len(names):
        raise SchemaError(f"a column is named twice: {', '.join(names)}")
    return {name: name for name in names}


def _check_transform(transform: object) -> None:
    if transform is not None and not callable(transform):
        raise OptionError(f"transform must be callable, not {transform!r}")


def _share(name: str, size: float, rows: int, rounded: Callable[[float], int]) -> int:
    """Return a number of rows, given as a number or as a fraction."""
    if isinstance(size, float) and 0 < size < 1:
        return rounded(size * rows)
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or not 0 < size < rows:
        raise OptionError(
            f"{name} must be a fraction between 0 and 1, or a number of the {rows} rows, "
            f"not {size!r}"
        )
    return int(size)
