"""The peer: torch-dataloader-utils with s3fs, with the settings that it offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import s3fs  # noqa: F401  # imports are done before the clock starts
from data import Data
from remote_store import TWO_COLUMNS, location
from remote_store import storage_options as credentials
from torch_dataloader_utils import RoundRobinSplitStrategy, StructuredDataset

from arms.registry import Mark, Pieces, arm
from arms.touch import count_rows

_SETTINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "workers-0": lambda: {"num_workers": 0},
    "workers-2": lambda: {"num_workers": 2},
    "round-robin-workers-0": lambda: {"num_workers": 0, **_whole_files()},
    "round-robin-workers-2": lambda: {"num_workers": 2, **_whole_files()},
    "round-robin-uncached-workers-0": lambda: {"num_workers": 0, **_whole_files(), **_UNCACHED},
}
_UNCACHED = {"storage_options": {"default_cache_type": "none"}}
"""otherwise s3fs fetches blocks of 50 MiB, most of a file, even for two columns"""


def _whole_files() -> dict[str, Any]:
    """Return the strategy that makes the library scan, which decodes in threads."""
    return {"split_strategy": RoundRobinSplitStrategy()}


def _create(
    data: Data, kind: str, storage_options: Mapping[str, Any] | None = None, **settings: Any
) -> Any:
    return StructuredDataset.create_dataloader(
        location(data, kind),
        "parquet",
        batch_size=1024,
        storage_options={**credentials(), **(storage_options or {})},
        **settings,
    )


def _read(data: Data, *, setting: str, columns: list[str] | None) -> Pieces:
    loader, _ = _create(data, "parquet", columns=columns, **_SETTINGS[setting]())
    yield Mark.CLOCK_STARTS
    yield from count_rows(loader, columns=21 if columns is None else len(columns))


for _setting in _SETTINGS:
    for _work, _columns in (("all", None), ("two", TWO_COLUMNS)):
        arm(f"tdu_s3.{_work}-{_setting}-20ms", reads="parquet")(
            partial(_read, setting=_setting, columns=_columns)
        )


@arm("tdu_s3.startup-20ms", reads="small")
def start_up(data: Data) -> Pieces:
    """Use its default strategy, which reads the footers to plan."""
    _, dataset = _create(data, "small", num_workers=0)
    splits = [split for shard in dataset._splits for split in shard.splits]
    if sum(split.row_range.length for split in splits) != data.rows("small"):
        raise SystemExit("footers were not read")
    yield len({split.file.path for split in splits})
