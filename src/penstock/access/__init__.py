"""Random access: rows by index, whatever they lie in, and map-style datasets over them."""

from penstock.access.array_record import ArrayRecordBackend
from penstock.access.arrow import ArrowBackend
from penstock.access.backend import Backend, StorageBackend
from penstock.access.bucket_batches import BucketBatchSampler
from penstock.access.lance import LanceBackend
from penstock.access.parquet import ParquetBackend
from penstock.access.rows import RowDataset
from penstock.access.samplers import GlobalShuffleSampler, ShardShuffleSampler
from penstock.access.tar import TarBackend
from penstock.access.video_frames import VideoFramesBackend

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
