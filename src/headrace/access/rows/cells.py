"""Batches made straight of the bytes of their rows, where columns consist of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from headrace.access.arrow.rows import Taken
from headrace.convert import Converter
from headrace.convert.arrays import Dense, dense_cells, dense_type
from headrace.convert.builders import Remedies, Remedy
from headrace.convert.columns import object_array
from headrace.convert.converter import field_paths

__all__ = ["CellBatches"]

_Cells: TypeAlias = npt.NDArray[Any]
_Maker: TypeAlias = Callable[[_Cells], Any]


@dataclass(frozen=True, slots=True)
class CellBatches:
    """What a ``Converter`` makes of columns that come as cells, without the blocks between.

    For a few hundred rows these would take an eighth of the time.
    """

    makers: tuple[tuple[str, _Maker], ...]
    """by the name of the column"""

    @classmethod
    def of(cls, converter: Converter, nulls: object) -> CellBatches | None:
        """For a converter that was made with these ``nulls``.

        None if not all columns may come as cells, or if some of them get a mask.
        """
        schema = converter.schema
        remedies = Remedies.parse(nulls, field_paths(list(schema)))
        if any(remedies.of(field.name, field.nullable, Remedy()).mask for field in schema):
            return None
        if len(converter.cell_columns) < len(schema):
            return None
        for_torch = converter.output_format == "torch"
        return cls(tuple((field.name, _maker(field, for_torch)) for field in schema))

    def batch(self, columns: Sequence[Taken]) -> dict[str, Any] | None:
        """A batch of all rows; None if not all columns have come as cells."""
        batch = {}
        for (name, make), cells in zip(self.makers, columns, strict=True):
            if not isinstance(cells, np.ndarray):
                return None
            batch[name] = make(cells)
        return batch


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Makes a tensor or an array."""

    dense: Dense
    column: str
    row: np.dtype[Any] | None
    """what the bytes of a row are, where they stay as they are"""
    for_torch: bool

    def __call__(self, cells: _Cells) -> torch.Tensor | npt.NDArray[Any]:
        row = self.row
        values = dense_cells(cells, self.dense, self.column) if row is None else cells.view(row)
        return torch.from_numpy(values) if self.for_torch else values


def _maker(field: pa.Field, for_torch: bool) -> _Maker:
    dense = dense_type(field.type, for_torch)
    if dense is None:
        return _bytes if for_torch else _bytes_in_array
    stays = dense.stored == dense.dtype and dense.axes is None
    row = np.dtype((dense.dtype, dense.shape)) if stays else None
    return _Numbers(dense, field.name, row, for_torch)


def _bytes(cells: _Cells) -> list[bytes]:
    made: list[bytes] = cells.tolist()
    return made


def _bytes_in_array(cells: _Cells) -> npt.NDArray[np.object_]:
    return object_array(_bytes(cells))
