"""The samples of each bucket, from aspect buckets or from a list."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.access.rows.dataset import RowDataset
from headrace.archives.tar.buckets import AspectBuckets
from headrace.errors import OptionError, SkippedDataWarning
from headrace.model import Int64Array

__all__ = ["Buckets", "buckets_of"]

_FEW = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """Samples by bucket."""

    keys: Sequence[Any]
    """name of each bucket; several shapes may have the same"""
    starts: Int64Array
    """where in ``samples`` each bucket begins, and the last ends"""
    samples: Int64Array
    shapes: Sequence[tuple[int, int]] | None = None
    """(width, height) of each bucket"""


def buckets_of(source: Any, unknown: str) -> Buckets:
    """Return the buckets of a source; ``unknown`` is what to do with samples without a shape."""
    if unknown not in ("raise", "skip"):
        raise OptionError(f'unknown must be "raise" or "skip", not {unknown!r}')
    if isinstance(source, RowDataset):
        if len(source) != source.backend.num_rows:
            raise OptionError(
                f"a view of {len(source)} of {source.backend.num_rows} rows has no buckets: give "
                "the rows of which it is a view, or the bucket of each of its rows"
            )
        source = source.backend
    if hasattr(source, "aspect_buckets"):
        source = source.aspect_buckets()
    if isinstance(source, AspectBuckets):
        return _of_shapes(source, unknown)
    return _of_numbers(source)


def _of_shapes(buckets: AspectBuckets, unknown: str) -> Buckets:
    if len(buckets.unknown):
        said = (
            f"{len(buckets.unknown)} of {len(buckets.unknown) + len(buckets.samples)} samples "
            f"have no known shape, the first is sample {int(buckets.unknown[0])}"
        )
        if unknown == "raise":
            raise OptionError(
                f"{said}: index images with geometry=True, or leave such out by "
                'on_error="skip" (create_dataloader) or unknown="skip" (the sampler)'
            )
        warnings.warn(f"skipped: {said}", SkippedDataWarning, stacklevel=4)
    shapes = list(zip(buckets.widths.tolist(), buckets.heights.tolist(), strict=True))
    return Buckets(buckets.shape_keys(), buckets.shape_starts, buckets.samples, shapes)


def _of_numbers(source: Any) -> Buckets:
    given = np.asarray(source)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iuU"):
        raise TypeError(
            "buckets must be AspectBuckets, what has them (a TarBackend, its rows), or the bucket "
            f"of each sample as integers or texts, not {source!r:.200}"
        )
    keys, numbers = np.unique(given, return_inverse=True)
    order: npt.NDArray[np.intp] = np.argsort(
        numbers.astype(np.uint16) if len(keys) <= _FEW else numbers, kind="stable"
    )
    counts = np.bincount(numbers, minlength=len(keys))
    if given.dtype.kind == "i":
        none = int(np.searchsorted(keys, 0))
        if none and int(keys[0]) < -1:
            raise OptionError(f"a bucket is a number from 0 on, or -1 for none, not {keys[0]}")
        keys, order, counts = keys[none:], order[int(counts[:none].sum()) :], counts[none:]
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    return Buckets(keys.tolist(), starts, order.astype(np.int64, copy=False))
