"""Random access: rows by index, whatever they lie in, and map-style datasets over them."""

from headrace.access.array_record.backend import ArrayRecordBackend
from headrace.access.arrow.backend import ArrowBackend
from headrace.access.backend import Backend, StorageBackend
from headrace.access.buckets import BucketBatchSampler
from headrace.access.concatenation import concatenate
from headrace.access.lance import LanceBackend
from headrace.access.parquet.backend import ParquetBackend
from headrace.access.rows.dataset import RowDataset
from headrace.access.samplers import GlobalShuffleSampler, ShardShuffleSampler
from headrace.access.tar.backend import TarBackend
from headrace.access.video.backend import VideoFramesBackend

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
