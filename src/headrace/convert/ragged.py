"""Columns whose rows are lists of numbers, of any length, in one of four forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.convert.columns import ArrayColumn, Rows, TensorColumn
from headrace.convert.objects import object_array

__all__ = ["RAGGED_FORMS", "RaggedColumn"]


@dataclass(frozen=True, slots=True, eq=False)
class RaggedColumn:
    """Rows are runs of one array of values; permuting rows moves the runs and not the values."""

    values: TensorColumn | ArrayColumn
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    form: str

    @property
    def nbytes(self) -> int:
        size = len(self.values.values)
        per_value = self.values.nbytes // size if size else 0
        return int(self.lengths.sum()) * per_value + self.starts.nbytes + self.lengths.nbytes

    def slice(self, start: int, length: int) -> RaggedColumn:
        rows = slice(start, start + length)
        return replace(self, starts=self.starts[rows], lengths=self.lengths[rows])

    def take(self, rows: Rows) -> RaggedColumn:
        return replace(self, starts=self.starts[rows], lengths=self.lengths[rows])

    def split(self, batch_size: int) -> Iterator[Any]:
        finish = _FORMS[self.form, isinstance(self.values, TensorColumn)]
        for start in range(0, len(self.starts), batch_size):
            rows = slice(start, start + batch_size)
            lengths = self.lengths[rows]
            yield finish(self._run(self.starts[rows], lengths).values, lengths)

    def _run(self, starts: Rows, lengths: Rows) -> TensorColumn | ArrayColumn:
        """The values of some rows end to end: a view where they already lie so."""
        ends = starts + lengths
        if len(starts) == 0 or np.array_equal(ends[:-1], starts[1:]):
            first = int(starts[0]) if len(starts) else 0
            return self.values.slice(first, int(lengths.sum()))
        within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return self.values.take(np.repeat(starts, lengths) + within)

    def arrays(self) -> list[npt.NDArray[Any]] | None:
        return None

    def to_send(self) -> RaggedColumn | None:
        return self.concat([self])

    def pin(self) -> RaggedColumn:
        return replace(self, values=self.values.pin())

    @classmethod
    def concat(cls, columns: Sequence[RaggedColumn]) -> RaggedColumn:
        runs = [column._run(column.starts, column.lengths) for column in columns]
        lengths = np.concatenate([column.lengths for column in columns])
        return cls.of(type(runs[0]).concat(runs), lengths, columns[0].form)  # type: ignore[arg-type]

    @classmethod
    def of(
        cls, values: TensorColumn | ArrayColumn, lengths: npt.NDArray[np.int64], form: str
    ) -> RaggedColumn:
        """Rows that lie end to end."""
        return cls(values, np.cumsum(lengths) - lengths, lengths, form)


def _tensor_list(values: torch.Tensor, lengths: Rows) -> list[torch.Tensor]:
    return list(torch.split(values, lengths.tolist()))


def _tensor_pad(values: torch.Tensor, lengths: Rows) -> torch.Tensor:
    width = int(lengths.max(initial=0))
    padded = values.new_zeros((len(lengths), width, *values.shape[1:]))
    padded[torch.from_numpy(_occupied(lengths, width))] = values
    return padded


def _tensor_offsets(values: torch.Tensor, lengths: Rows) -> dict[str, torch.Tensor]:
    return {"values": values, "offsets": torch.from_numpy(_offsets(lengths))}


def _tensor_nested(values: torch.Tensor, lengths: Rows) -> torch.Tensor:
    nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(
        values, torch.from_numpy(_offsets(lengths))
    )
    return nested


def _array_list(values: npt.NDArray[Any], lengths: Rows) -> npt.NDArray[np.object_]:
    edges = _offsets(lengths).tolist()
    return object_array([values[a:b] for a, b in pairwise(edges)])


def _array_pad(values: npt.NDArray[Any], lengths: Rows) -> npt.NDArray[Any]:
    width = int(lengths.max(initial=0))
    padded = np.zeros((len(lengths), width, *values.shape[1:]), values.dtype)
    padded[_occupied(lengths, width)] = values
    return padded


def _array_offsets(values: npt.NDArray[Any], lengths: Rows) -> dict[str, npt.NDArray[Any]]:
    return {"values": values, "offsets": _offsets(lengths)}


def _occupied(lengths: Rows, width: int) -> npt.NDArray[np.bool_]:
    occupied: npt.NDArray[np.bool_] = np.arange(width) < lengths[:, None]
    return occupied


def _offsets(lengths: Rows) -> npt.NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


_FORMS: dict[tuple[str, bool], Callable[[Any, Rows], Any]] = {
    ("list", True): _tensor_list,
    ("pad", True): _tensor_pad,
    ("offsets", True): _tensor_offsets,
    ("nested", True): _tensor_nested,
    ("list", False): _array_list,
    ("pad", False): _array_pad,
    ("offsets", False): _array_offsets,
}

RAGGED_FORMS = tuple(dict.fromkeys(form for form, _ in _FORMS))
