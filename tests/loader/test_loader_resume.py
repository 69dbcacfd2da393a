"""The save and resume contract, for every kind of configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pyarrow.dataset as ds
from small_files import write_csv, write_parquet
from worker_code import doubled

from headrace import RoundRobinSplitStrategy, StatefulLoader, StructuredDataset
from headrace.testing import ResumeContract


class ParquetResume(ResumeContract):
    @classmethod
    def write(cls, directory: Path) -> None:
        write_parquet(directory)

    @classmethod
    def create(cls, directory: Path, **options: Any) -> StatefulLoader:
        settings = {"batch_size": 100, "num_workers": 0, **options}
        return StructuredDataset.create_dataloader(directory, **settings)[0]


class CsvResume(ParquetResume):
    @classmethod
    def write(cls, directory: Path) -> None:
        write_csv(directory)

    @classmethod
    def create(cls, directory: Path, **options: Any) -> StatefulLoader:
        return super().create(directory, format="csv", split_bytes=2000, **options)


class TestInOrder(ParquetResume):
    options: ClassVar = {}


class TestChunksShuffled(ParquetResume):
    options: ClassVar = {"shuffle": True, "split_rows": 70}


class TestRowsMixed(ParquetResume):
    options: ClassVar = {"shuffle": True, "split_rows": 70, "mix": 3}


class TestMixedTransformedDropLast(ParquetResume):
    options: ClassVar = {
        "split_rows": 90,
        "shuffle": True,
        "mix": 3,
        "drop_last": True,
        "transform": doubled,
    }


class TestFourLanes(ParquetResume):
    options: ClassVar = {"shuffle": True, "split_rows": 70, "lanes": 4, "drop_last": True}


class TestFiltered(ParquetResume):
    options: ClassVar = {"filters": [("id", "not in", [3, 5, 700])]}


class TestFilteredMixedInFourLanes(ParquetResume):
    options: ClassVar = {
        "filters": (ds.field("id") < 300) | (ds.field("id") > 450),
        "shuffle": True,
        "split_rows": 60,
        "mix": 3,
        "lanes": 4,
    }


class TestFilteredDropLast(ParquetResume):
    options: ClassVar = {"filters": [("id", ">", 17)], "drop_last": True, "output_format": "arrow"}


class TestSkipping(ParquetResume):
    options: ClassVar = {"on_error": "skip", "shuffle": True, "split_rows": 70}


class TestRoundRobinFiles(ParquetResume):
    options: ClassVar = {"split_strategy": RoundRobinSplitStrategy(), "lanes": 3}


class TestTwoWorkersMixedFourLanes(ParquetResume):
    options: ClassVar = {
        "num_workers": 2,
        "shuffle": True,
        "split_rows": 70,
        "mix": 3,
        "lanes": 4,
        "transform": doubled,
    }


class TestTwoPersistentWorkersFilteredDropLast(ParquetResume):
    options: ClassVar = {
        "num_workers": 2,
        "filters": [("id", ">", 17)],
        "shuffle": True,
        "split_rows": 70,
        "drop_last": True,
        "output_format": "dict",
        "persistent_workers": True,
    }


class TestCsvShuffledMixed(CsvResume):
    options: ClassVar = {"shuffle": True, "mix": 3, "lanes": 4}


class TestCsvDropLast(CsvResume):
    options: ClassVar = {"drop_last": True, "lanes": 2}
