"""Work that is done with every batch, the same for the library and its peers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

__all__ = ["count_rows"]


def count_rows(
    loader: Iterable[Mapping[str, torch.Tensor]], *, columns: int, count: str = "row"
) -> Iterator[int]:
    """Yield the length of one column of each batch; the first and the last batch are checked.

    Checking every column of every batch would take longer than some of the loaders do.
    """
    batch: Mapping[str, torch.Tensor] = {}
    for number, batch in enumerate(loader):
        if number == 0:
            _look_through(batch, columns, count)
        yield len(batch[count])
    _look_through(batch, columns, count)


def _look_through(batch: Mapping[str, torch.Tensor], columns: int, count: str) -> None:
    rows = len(batch[count])
    if len(batch) != columns:
        raise SystemExit(f"a batch has {len(batch)} columns, not {columns}")
    for name, values in batch.items():
        if not isinstance(values, torch.Tensor) or len(values) != rows:
            raise SystemExit(f"column {name} of a batch is not a tensor of {rows} rows")
