"""Datasets and the DataLoader that comes out: epochs, workers, state, statistics."""

from penstock.loader.dataloader import StatefulLoader
from penstock.loader.dataset import TabularDataset
from penstock.loader.epoch import SkippedDataWarning
from penstock.loader.iceberg import IcebergDataset
from penstock.loader.paimon import PaimonDataset
from penstock.loader.state import merge_states
from penstock.loader.structured import StructuredDataset

__all__ = [
    "IcebergDataset",
    "PaimonDataset",
    "SkippedDataWarning",
    "StatefulLoader",
    "StructuredDataset",
    "TabularDataset",
    "merge_states",
]
