"""Datasets and the DataLoader that comes out: epochs, workers, state, statistics."""

from headrace.loader.array_record import ArrayRecordDataset
from headrace.loader.arrow import ArrowDataset
from headrace.loader.dataloader import StatefulLoader
from headrace.loader.dataset import TabularDataset
from headrace.loader.iceberg import IcebergDataset
from headrace.loader.lance import LanceDataset
from headrace.loader.opening import open_dataset
from headrace.loader.paimon import PaimonDataset
from headrace.loader.state import merge_states
from headrace.loader.structured import StructuredDataset
from headrace.loader.tar import TarDataset
from headrace.loader.video_frames import VideoFramesDataset

__all__ = [
    "ArrayRecordDataset",
    "ArrowDataset",
    "IcebergDataset",
    "LanceDataset",
    "PaimonDataset",
    "StatefulLoader",
    "StructuredDataset",
    "TabularDataset",
    "TarDataset",
    "VideoFramesDataset",
    "merge_states",
    "open_dataset",
]
