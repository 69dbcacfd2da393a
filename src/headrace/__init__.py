"""Data from where it lies into PyTorch training.

    location ─► discover ─► plan ─► read ahead ─► mix ─► convert ─► cut ─► loader

A location is listed and every file looked into once (``storage``, ``formats``). From that
metadata alone it is decided who reads which rows in which order (``plan``). Threads read ahead
and decode (``stream``), columns are turned into tensors once a block (``convert``), and exact
batches are cut from the blocks and handed out by a standard DataLoader (``loader``).
"""

from headrace.access import BucketBatchSampler
from headrace.errors import (
    AccessDeniedError,
    ConversionError,
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
)
from headrace.loader import open_dataset as open
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
from headrace.plan import (
    EvenBatchesSplitStrategy,
    RoundRobinSplitStrategy,
    TargetSizeSplitStrategy,
)
from headrace.sources.source import Source
from headrace.sources.tar.shards import TarShards
from headrace.write import TarWriter, shuffle_into

__all__ = [
    "AccessDeniedError",
    "ArrayRecordDataset",
    "ArrowDataset",
    "BucketBatchSampler",
    "ByteRange",
    "ConversionError",
    "DataFileInfo",
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
    "merge_states",
    "open",
    "shuffle_into",
]

__version__ = "0.1.0"
