"""Datasets and the DataLoader that comes out: epochs, workers, state, statistics."""

from headrace.loader._dataloader import StatefulLoader
from headrace.loader._dataset import TabularDataset
from headrace.loader._tables import IcebergDataset, LanceDataset, PaimonDataset
from headrace.loader._tar import BucketedLoader, TarDataset
from headrace.loader.datasets import (
    ArrayRecordDataset,
    ArrowDataset,
    SourceDataset,
    StructuredDataset,
    VideoFramesDataset,
    open_dataset,
)
from headrace.plan import merge_states

__all__ = [
    "ArrayRecordDataset",
    "ArrowDataset",
    "BucketedLoader",
    "IcebergDataset",
    "LanceDataset",
    "PaimonDataset",
    "SourceDataset",
    "StatefulLoader",
    "StructuredDataset",
    "TabularDataset",
    "TarDataset",
    "VideoFramesDataset",
    "merge_states",
    "open_dataset",
]
