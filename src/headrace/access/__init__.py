"""Random access: rows by index from any backend, and map-style datasets over them."""

from headrace.access._buckets import BucketBatchSampler
from headrace.access._concatenation import concatenate
from headrace.access._samplers import GlobalShuffleSampler, ShardShuffleSampler
from headrace.access.rows._dataset import RowDataset
from headrace.sources.array_record.backend import ArrayRecordBackend
from headrace.sources.arrow.backend import ArrowBackend
from headrace.sources.backend import Backend, StorageBackend
from headrace.sources.lance.backend import LanceBackend
from headrace.sources.parquet.backend import ParquetBackend
from headrace.sources.tar.source import TarBackend
from headrace.sources.video.backend import VideoFramesBackend

__all__ = [
    "ArrayRecordBackend",
    "ArrowBackend",
    "Backend",
    "BucketBatchSampler",
    "GlobalShuffleSampler",
    "LanceBackend",
    "ParquetBackend",
    "RowDataset",
    "ShardShuffleSampler",
    "StorageBackend",
    "TarBackend",
    "VideoFramesBackend",
    "concatenate",
]
