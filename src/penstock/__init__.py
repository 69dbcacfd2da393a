"""Data from where it lies into PyTorch training.

    location ─► discover ─► plan ─► read ahead ─► mix ─► convert ─► cut ─► loader

A location is listed and every file looked into once (``storage``, ``formats``). From that
metadata alone it is decided who reads which rows in which order (``plan``). Threads read ahead
and decode (``stream``), columns are turned into tensors once a block (``convert``), and exact
batches are cut from the blocks and handed out by a standard DataLoader (``loader``).
"""

from penstock.access import BucketBatchSampler
from penstock.archives.tar.shards import TarShards
from penstock.errors import (
    AccessDeniedError,
    ConversionError,
    FileChangedError,
    MissingExtraError,
    NothingFoundError,
    OptionError,
    PenstockError,
    PlanError,
    ReadError,
    SchemaError,
    SkippedDataWarning,
    StaleIndexError,
    StateMismatchError,
    WorkerError,
    WriteError,
)
from penstock.loader import (
    ArrayRecordDataset,
    ArrowDataset,
    IcebergDataset,
    LanceDataset,
    PaimonDataset,
    StatefulLoader,
    StructuredDataset,
    TarDataset,
    VideoFramesDataset,
    merge_states,
)
from penstock.loader import open_dataset as open
from penstock.model import (
    ByteRange,
    DataFileInfo,
    FileSplit,
    IcebergDataFileInfo,
    RowGroups,
    RowRange,
    Split,
    SplitStrategy,
)
from penstock.plan import (
    EvenBatchesSplitStrategy,
    RoundRobinSplitStrategy,
    TargetSizeSplitStrategy,
)
from penstock.write import TarWriter, shuffle_into

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
    "IcebergDataFileInfo",
    "IcebergDataset",
    "LanceDataset",
    "MissingExtraError",
    "NothingFoundError",
    "OptionError",
    "PaimonDataset",
    "PenstockError",
    "PlanError",
    "ReadError",
    "RoundRobinSplitStrategy",
    "RowGroups",
    "RowRange",
    "SchemaError",
    "SkippedDataWarning",
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
    "VideoFramesDataset",
    "WorkerError",
    "WriteError",
    "merge_states",
    "open",
    "shuffle_into",
]

__version__ = "0.1.0"
