"""Data from where it lies into PyTorch training.

    location ─► discover ─► plan ─► read ahead ─► mix ─► convert ─► cut ─► loader

A location is listed, and the metadata of every file is read once (``storage``, ``sources``). From
these metadata alone follows which process reads which rows in which order (``plan``). Threads read
ahead and decode (``stream``), columns are turned into tensors once a block (``convert``), and exact
batches are cut from the blocks and handed out by a standard DataLoader (``loader``).

Public names are imported when they are first used: indexing tars, for example, needs no torch.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    raise ImportError(
        "headrace does not run on Windows: it needs POSIX file and memory functions. "
        "Use Linux, macOS, or the Windows Subsystem for Linux (WSL)"
    )

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.errors import (
    AccessDeniedError,
    ConversionError,
    DeviceMemoryError,
    FileChangedError,
    HeadraceError,
    MissingExtraError,
    NothingFoundError,
    OptionError,
    PlanError,
    RankMismatchError,
    ReadError,
    SchemaError,
    SkippedDataWarning,
    StaleIndexError,
    StateMismatchError,
    UnknownOptionError,
    WorkerError,
    WriteError,
)
from headrace.model import (
    ByteRange,
    DataFileInfo,
    FileSplit,
    IcebergDataFileInfo,
    RowGroups,
    RowRange,
    Split,
    SplitStrategy,
)

if TYPE_CHECKING:
    from headrace.access import BucketBatchSampler
    from headrace.convert import NUMERIC
    from headrace.loader import (
        ArrayRecordDataset,
        ArrowDataset,
        IcebergDataset,
        LanceDataset,
        PaimonDataset,
        SourceDataset,
        StatefulLoader,
        StructuredDataset,
        TarDataset,
        VideoFramesDataset,
        merge_states,
        open_dataset,
    )
    from headrace.plan import (
        EvenBatchesSplitStrategy,
        RoundRobinSplitStrategy,
        TargetSizeSplitStrategy,
    )
    from headrace.sources.source import Source
    from headrace.sources.tar import index_tars, write_captions
    from headrace.sources.tar.shards import TarShards
    from headrace.write import TarWriter, push_to_hub, shuffle_into

    open = open_dataset

# Without "open": an import of all names must not replace the function of Python.
__all__ = [
    "NUMERIC",
    "AccessDeniedError",
    "ArrayRecordDataset",
    "ArrowDataset",
    "BucketBatchSampler",
    "ByteRange",
    "ConversionError",
    "DataFileInfo",
    "DeviceMemoryError",
    "EvenBatchesSplitStrategy",
    "FileChangedError",
    "FileSplit",
    "HeadraceError",
    "IcebergDataFileInfo",
    "IcebergDataset",
    "LanceDataset",
    "MissingExtraError",
    "NothingFoundError",
    "OptionError",
    "PaimonDataset",
    "PlanError",
    "RankMismatchError",
    "ReadError",
    "RoundRobinSplitStrategy",
    "RowGroups",
    "RowRange",
    "SchemaError",
    "SkippedDataWarning",
    "Source",
    "SourceDataset",
    "Split",
    "SplitStrategy",
    "StaleIndexError",
    "StateMismatchError",
    "StatefulLoader",
    "StructuredDataset",
    "TarDataset",
    "TarShards",
    "TarWriter",
    "TargetSizeSplitStrategy",
    "UnknownOptionError",
    "VideoFramesDataset",
    "WorkerError",
    "WriteError",
    "index_tars",
    "merge_states",
    "push_to_hub",
    "shuffle_into",
    "write_captions",
]

__version__ = "0.1.0"

_LAZY_NAMES = {
    "headrace.access": ("BucketBatchSampler",),
    "headrace.convert": ("NUMERIC",),
    "headrace.loader": (
        "ArrayRecordDataset",
        "ArrowDataset",
        "IcebergDataset",
        "LanceDataset",
        "PaimonDataset",
        "SourceDataset",
        "StatefulLoader",
        "StructuredDataset",
        "TarDataset",
        "VideoFramesDataset",
        "merge_states",
        "open_dataset",
    ),
    "headrace.plan": (
        "EvenBatchesSplitStrategy",
        "RoundRobinSplitStrategy",
        "TargetSizeSplitStrategy",
    ),
    "headrace.sources.source": ("Source",),
    "headrace.sources.tar": ("index_tars", "write_captions"),
    "headrace.sources.tar.shards": ("TarShards",),
    "headrace.write": ("TarWriter", "push_to_hub", "shuffle_into"),
}
_MODULE_OF = {name: module for module, names in _LAZY_NAMES.items() for name in names}
_PACKAGES = ("access", "integrations", "loader", "plan", "sources", "storage", "testing", "write")

if not TYPE_CHECKING:  # else a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name, or a package of this one, when it is first used."""
        if name in _PACKAGES:
            return import_module(f"headrace.{name}")
        attribute = "open_dataset" if name == "open" else name
        if attribute not in _MODULE_OF:
            raise AttributeError(f"module 'headrace' has no attribute {name!r}")
        value = getattr(import_module(_MODULE_OF[attribute]), attribute)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_PACKAGES, "open"})
