"""Rows by their index as a dataset of torch: one by one, or many with one read."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import Dataset, get_worker_info

from headrace.access.arrow.backend import ArrowBackend
from headrace.access.backend import Backend, Indices, StorageBackend, checked_indices
from headrace.access.orphans import end_with_parent
from headrace.access.rows.batch import Row, RowBatch, register_collate
from headrace.access.rows.format import RowForm, RowReader, named_decoders
from headrace.access.rows.tables import gathered, mapped, with_column
from headrace.access.rows.views import View
from headrace.convert.decoded import Kinds
from headrace.convert.shared import shared_integers
from headrace.errors import OptionError, ReadError, SchemaError, SkippedDataWarning
from headrace.options import checked_keywords

__all__ = ["RowDataset"]

_ITERATED_ROWS = 256
"""that are read together where all are asked for, one after the other"""
_COUNTERS = 256
"""places in which processes count without waiting for each other"""


@checked_keywords
class RowDataset(Dataset[Any]):
    """The rows of a backend, by index and in any order.

    ``rows[i]`` is a row, ``rows[a:b]`` a view, ``rows[[3, 1]]`` a batch. A plain ``DataLoader``
    over it reads and converts each of its batches at once, in columns; a ``collate_fn`` of your
    own gets rows. What columns become (``output_format``, ``nulls``, ``ragged``) is as in all
    loaders of this library, but that a row has its own values of a ragged column.

    ``decode`` names columns of encoded images, which become uint8 [3, H, W], or gives functions by
    column. ``transform`` is called with each row. With ``on_error="skip"`` rows that cannot be read
    or decoded are left out of batches, counted in ``skipped`` and named in a SkippedDataWarning;
    alone, as ``rows[i]``, they are an error all the same.
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
                f"rows are those of a backend, such as ArrowBackend(...), not {backend!r}; "
                "headrace.open(location).rows finds the one that fits"
            )
        if on_error not in ("raise", "skip"):
            raise OptionError(f'on_error must be "raise" or "skip", not {on_error!r}')
        if transform is not None and not callable(transform):
            raise OptionError(f"transform must be callable, not {transform!r}")
        if isinstance(columns, str):
            raise OptionError(f"columns must be a list of names, not {columns!r}")
        form = RowForm(
            columns=None if columns is None else tuple(columns),
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

    # --- what there is

    @property
    def backend(self) -> StorageBackend:
        """What is read from."""
        return self._reader.backend

    @property
    def schema(self) -> pa.Schema:
        """Columns and their Arrow types, as they are stored."""
        return self._reader.schema

    @property
    def column_names(self) -> list[str]:
        """The names of the columns that are read."""
        return list(self.schema.names)

    @property
    def num_rows(self) -> int:
        """Rows of this view."""
        return self._view.count

    @property
    def skipped(self) -> int:
        """Rows that were left out so far, here, in views of these rows and in worker processes."""
        return 0 if self._skipped is None else int(self._skipped.sum())

    def __len__(self) -> int:
        return self._view.count

    def __repr__(self) -> str:
        return f"<RowDataset: {len(self):,} rows of {', '.join(self.column_names)}>"

    # --- rows

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._with(view=self._view.sliced(index))
        if isinstance(index, list | tuple | range | np.ndarray | torch.Tensor) and np.ndim(index):
            return self.batch(np.asarray(index))
        try:
            place = operator.index(index)
        except TypeError:
            raise TypeError(
                f"rows are named by an integer, a slice or a list of integers, not {index!r}"
            ) from None
        return self._finished(self._read([place], skip=False).row(0))

    def __setstate__(self, state: dict[str, Any]) -> None:
        register_collate()  # a worker process collates as well
        self.__dict__.update(state)

    def __getitems__(self, indices: Indices) -> Any:
        """The rows of a batch, by one read and one conversion: what torch's loader asks for."""
        batch = self._some_of(indices)
        return batch if self._transform is None else [self._finished(row) for row in batch]

    def batch(self, indices: Indices) -> Any:
        """Rows in columns, as a loader collates them, but without ``transform``."""
        end_with_parent()
        rows = self._view.at(checked_indices(indices, self._view.count))
        batch = self._reader.batch(rows, skip=self._skipped is not None)
        return self._some_of(indices).columns if batch is None else batch

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), _ITERATED_ROWS):
            places = np.arange(start, min(start + _ITERATED_ROWS, len(self)))
            yield from map(self._finished, self._read(places, skip=self._skipped is not None))

    def _some_of(self, indices: Indices) -> RowBatch:
        """A batch of these rows but for some: not but for all, torch collates no batch of none."""
        batch = self._read(indices, skip=self._skipped is not None)
        if len(indices) and not len(batch) and not self._may_give_none:
            raise ReadError(
                f"no row of a batch of {len(indices)} can be read: warnings name them all, one is "
                f"row {indices[0]} of this view"
            )
        return batch

    def _read(self, indices: Indices, *, skip: bool) -> RowBatch:
        end_with_parent()
        rows = self._view.at(checked_indices(indices, self._view.count))
        batch, broken = self._reader.read(rows, skip=skip)
        if broken:
            self._count(broken)
        return batch

    def _finished(self, row: Any) -> Any:
        plain = dict(row) if isinstance(row, Row) else row
        return plain if self._transform is None else self._transform(plain)

    def _count(self, broken: Sequence[str]) -> None:
        assert self._skipped is not None
        info = get_worker_info()
        self._skipped[0 if info is None else 1 + info.id % (_COUNTERS - 1)] += len(broken)
        for reason in broken:
            warnings.warn(f"skipped: {reason}", SkippedDataWarning, stacklevel=4)

    # --- views, which copy nothing

    def select(self, indices: Indices | range) -> RowDataset:
        """These rows, in this order, as often as they are named."""
        return self._with(view=self._view.selected(indices))

    def shuffle(self, seed: int) -> RowDataset:
        """All rows in an order that follows from the seed, and takes no memory."""
        return self._with(view=self._view.shuffled(seed))

    def select_columns(self, columns: Sequence[str]) -> RowDataset:
        """Only these columns, in this order; others are not read."""
        if isinstance(columns, str):
            raise OptionError(f"columns must be a list of names, not {columns!r}")
        columns = list(columns)
        unknown = [name for name in columns if name not in self.column_names]
        if unknown:
            known = ", ".join(self.column_names)
            raise SchemaError(f"there is no column {unknown[0]!r}; the columns are {known}")
        return self._with(form=self._reader.form.projected(columns, self.column_names))

    def with_format(self, output_format: str) -> RowDataset:
        """The same rows as "torch", "numpy", "arrow" or "dict".

        Arrow and dicts keep nulls and lists, and Arrow the bytes of images, whatever was chosen
        for them.
        """
        return self._with(form=self._reader.form.formatted(output_format))

    def with_empty_batches(self) -> RowDataset:
        """The same for a loader that knows what to do with a batch of which all was left out."""
        made = copy(self)
        made._may_give_none = True
        return made

    def _with(self, *, view: View | None = None, form: RowForm | None = None) -> RowDataset:
        made = copy(self)
        if view is not None:
            made._view = view
        if form is not None:
            made._reader = RowReader(self.backend, form)
        return made

    # --- copies, in memory

    def flatten(self) -> RowDataset:
        """The rows of this view gathered in its order."""
        return self._over(self._table(), self._kinds)

    def rename_column(self, old: str, new: str) -> RowDataset:
        """A copy in which a column has another name."""
        if old not in self.column_names:
            known = ", ".join(self.column_names)
            raise SchemaError(f"there is no column {old!r}; the columns are {known}")
        if new in self.column_names and new != old:
            raise SchemaError(f"there is a column {new!r} already; rename it first")
        names = [new if name == old else name for name in self.column_names]
        form = self._reader.form.renamed(old, new, self.column_names)
        kinds = {new if name == old else name: kind for name, kind in self._kinds.items()}
        return self._over(self._table().rename_columns(names), kinds, form)

    def add_column(self, name: str, values: Any) -> RowDataset:
        """A copy with one more column: a list, an array or a tensor with a value for each row."""
        return self._over(with_column(self._table(), name, values), self._kinds)

    def map(
        self,
        function: Callable[[Any], Mapping[str, Any]],
        *,
        batched: bool = False,
        batch_size: int = 1000,
    ) -> RowDataset:
        """A copy with the columns that a function returns in place of, or beside, the others.

        It is called with rows as dicts of what is stored, in Python values, neither decoded nor
        transformed; ``batched`` with dicts of lists. Values may also be arrays and tensors.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise OptionError(f"batch_size must be an int of at least 1, not {batch_size!r}")
        table, made = mapped(self._table(), function, batched, batch_size)
        kinds = {name: kind for name, kind in self._kinds.items() if name not in made}
        return self._over(table, kinds)

    def _table(self) -> pa.Table:
        return gathered(self.backend, self._view, self._reader.columns)

    @property
    def _kinds(self) -> Kinds:
        """The kinds of the columns that are read."""
        kinds = self.backend.kinds if isinstance(self.backend, Backend) else {}
        return {name: kind for name, kind in kinds.items() if name in self.column_names}

    def _over(self, table: pa.Table, kinds: Kinds, form: RowForm | None = None) -> RowDataset:
        made = copy(self)
        replaced = [
            f.name
            for f in self.schema
            if f.name in table.schema.names and table.schema.field(f.name).type != f.type
        ]
        form = (form or self._reader.form).of_all(replaced, table.schema.names)
        made._reader = RowReader(ArrowBackend.of_decoded(table, kinds), form)
        made._view = View(table.num_rows)
        return made
