"""The keywords that all datasets have in common, with their defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import pyarrow.dataset as ds

from headrace.errors import OptionError
from headrace.loader.options import Finish, OrderOptions, make_cache, make_finish, make_requests
from headrace.loader.ranks import Ranks, given_ranks
from headrace.model import FileList, SplitStrategy
from headrace.plan import parse_bytes
from headrace.storage import Access, Options, RetryPolicy

__all__ = ["DatasetOptions", "PathLike", "Settings"]

PathLike = str | os.PathLike[str]


class DatasetOptions(TypedDict, total=False):
    """Keywords of every dataset, which its ``create_dataloader`` takes too."""

    batch_size: int
    drop_last: bool
    columns: Sequence[str] | None
    filters: ds.Expression | Sequence[Any] | None
    shuffle: bool
    shuffle_seed: int
    split_bytes: int | str | None
    split_rows: int | None
    split_strategy: SplitStrategy | None
    mix: int
    interleave: int
    shuffle_buffer_rows: int | None
    lanes: int | None
    rank: int | None
    world_size: int | None
    even: str | bool | None
    balance: str
    output_format: str
    transform: Callable[[Any], Any] | None
    collate_fn: Callable[[Any], Any] | None
    nulls: str | Mapping[str, Any] | None
    ragged: str
    on_error: str
    storage_options: Options | None
    filesystem: Any
    cache_dir: PathLike | None
    cache_bytes: int | str | None
    retries: int
    timeout_s: float
    max_elapsed_s: float
    max_gap_bytes: int | str | None
    max_request_bytes: int | str
    prefetch_bytes: int | str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What ``DatasetOptions`` say, checked; what follows from them is made once."""

    batch_size: int = 1024
    drop_last: bool = False
    columns: Sequence[str] | None = None
    filters: ds.Expression | Sequence[Any] | None = None
    shuffle: bool = False
    shuffle_seed: int = 42
    split_bytes: int | str | None = None
    split_rows: int | None = None
    split_strategy: SplitStrategy | None = None
    mix: int = 1
    interleave: int = 1
    shuffle_buffer_rows: int | None = None
    lanes: int | None = None
    rank: int | Ranks | None = None
    world_size: int | None = None
    even: str | bool | None = None
    balance: str = "static"
    output_format: str = "torch"
    transform: Callable[[Any], Any] | None = None
    collate_fn: Callable[[Any], Any] | None = None
    nulls: str | Mapping[str, Any] | None = None
    ragged: str = "list"
    on_error: str = "raise"
    storage_options: Options | None = field(default=None, repr=False)
    filesystem: Any = field(default=None, repr=False)
    cache_dir: PathLike | None = None
    cache_bytes: int | str | None = None
    retries: int = 10
    timeout_s: float = 30.0
    max_elapsed_s: float = 300.0
    max_gap_bytes: int | str | None = None
    max_request_bytes: int | str = "8MiB"
    prefetch_bytes: int | str = "256MiB"

    _order: OrderOptions = field(init=False, repr=False)
    ranks: Ranks = field(init=False)
    finish: Finish | None = field(init=False)
    budget_bytes: int = field(init=False)
    """``prefetch_bytes`` as a number"""

    def __post_init__(self) -> None:
        order = OrderOptions(
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            shuffle=self.shuffle,
            shuffle_seed=self.shuffle_seed,
            split_bytes=self.split_bytes,
            split_rows=self.split_rows,
            split_strategy=self.split_strategy,
            mix=self.mix,
            interleave=self.interleave,
            lanes=self.lanes,
        )
        if self.on_error not in ("raise", "skip"):
            raise OptionError(f'on_error must be "raise" or "skip", not {self.on_error!r}')
        made = {
            "_order": order,
            "ranks": given_ranks(self.rank, self.world_size),
            "finish": make_finish(self.transform, self.collate_fn),
            "budget_bytes": parse_bytes("prefetch_bytes", self.prefetch_bytes),
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @property
    def skip_broken(self) -> bool:
        """Whether what cannot be read is left out, with a warning."""
        return self.on_error == "skip"

    @property
    def largest_chunk_bytes(self) -> int:
        """Files that are larger are cut, if how is left to the library."""
        return self._order.chunk_bytes

    def order(self, files: FileList) -> OrderOptions:
        """What decides the order; the size of windows may follow from the files."""
        if self.shuffle_buffer_rows is None:
            return self._order
        return self._order.mixing(self.shuffle_buffer_rows, files)

    def access(self, found: Callable[[], Mapping[str, Any]] = dict) -> Access:
        """How stores are reached; options that are ``found`` hold where the user gave none."""
        given = self.storage_options
        if given is None:
            given = {} if self.filesystem is not None else found()
        return Access(
            storage_options=given,
            filesystem=self.filesystem,
            retry=RetryPolicy(self.retries, self.timeout_s, self.max_elapsed_s),
            requests=make_requests(self.max_gap_bytes, self.max_request_bytes),
            cache=make_cache(self.cache_dir, self.cache_bytes),
        )
