"""Datasets and the DataLoader that comes out: epochs, workers, state, statistics."""

from penstock.loader.array_record import ArrayRecordDataset
from penstock.loader.arrow import ArrowDataset
from penstock.loader.dataloader import StatefulLoader
from penstock.loader.dataset import TabularDataset
from penstock.loader.iceberg import IcebergDataset
from penstock.loader.lance import LanceDataset
from penstock.loader.opening import open_dataset
from penstock.loader.paimon import PaimonDataset
from penstock.loader.state import merge_states
from penstock.loader.structured import StructuredDataset
from penstock.loader.tar import TarDataset
from penstock.loader.video_frames import VideoFramesDataset

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
