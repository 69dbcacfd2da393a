"""Random access: rows by index, whatever they lie in, and map-style datasets over them."""

from penstock.access.array_record.backend import ArrayRecordBackend
from penstock.access.arrow.backend import ArrowBackend
from penstock.access.backend import Backend, StorageBackend
from penstock.access.buckets.batches import BucketBatchSampler
from penstock.access.lance import LanceBackend
from penstock.access.parquet.backend import ParquetBackend
from penstock.access.rows.dataset import RowDataset
from penstock.access.samplers import GlobalShuffleSampler, ShardShuffleSampler
from penstock.access.tar.backend import TarBackend
from penstock.access.video.backend import VideoFramesBackend

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
]
