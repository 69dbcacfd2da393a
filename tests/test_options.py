"""Keywords: which are refused and how, and how signatures and documentation show them."""

from __future__ import annotations

import importlib.util
import inspect
import json
import pydoc
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, is_typeddict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from accelerate import Accelerator
from accelerate.data_loader import IterableDatasetShard
from torch.utils.data import DataLoader

import headrace
from headrace import (
    OptionError,
    StructuredDataset,
    TarDataset,
    UnknownOptionError,
    access,
    options,
    write,
)
from headrace.options import FileFormat, parse_bytes
from headrace.sources.files.discovery import FORMAT_NAMES

ROOT = Path(__file__).parents[1]
DATASETS = {
    headrace.StructuredDataset: options.StructuredOptions,
    headrace.SourceDataset: options.DatasetOptions,
    headrace.ArrowDataset: options.ArrowOptions,
    headrace.ArrayRecordDataset: options.ArrayRecordOptions,
    headrace.VideoFramesDataset: options.VideoFramesOptions,
    headrace.TarDataset: options.TarOptions,
    headrace.IcebergDataset: options.IcebergOptions,
    headrace.PaimonDataset: options.PaimonOptions,
    headrace.LanceDataset: options.LanceOptions,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"id": range(100)}), tmp_path / "a.parquet")
    return tmp_path


@pytest.mark.parametrize("error", [UnknownOptionError, OptionError, TypeError])
def test_a_misspelt_keyword_names_the_right_one(folder: Path, error: type[Exception]) -> None:
    with pytest.raises(error, match="StructuredDataset has no keyword batch_sise; did you mean"):
        StructuredDataset(folder, batch_sise=8)  # type: ignore[call-arg]
    with pytest.raises(error, match=r"did you mean .num_workers"):
        StructuredDataset.create_dataloader(folder, num_worker=2)  # type: ignore[call-arg]


def test_a_keyword_of_another_call_says_where_it_belongs(folder: Path) -> None:
    with pytest.raises(UnknownOptionError, match=r"num_workers: it belongs to .*loader"):
        StructuredDataset(folder, num_workers=2)  # type: ignore[call-arg]
    with pytest.raises(UnknownOptionError, match=r"batch_size: it belongs to StructuredDataset"):
        StructuredDataset(folder).loader(batch_size=2)  # type: ignore[call-arg]


def test_names_of_arguments_are_suggested_too(folder: Path) -> None:
    with pytest.raises(
        UnknownOptionError, match=r"StructuredDataset has no keyword paths; did .* 'path'"
    ):
        StructuredDataset(paths=folder)  # type: ignore[call-arg]
    with pytest.raises(
        UnknownOptionError, match=r"create_dataloader has no keyword fromat.*format"
    ):
        StructuredDataset.create_dataloader(folder, fromat="csv")  # type: ignore[call-arg]
    with pytest.raises(UnknownOptionError, match=r"num_workers: it belongs to .*create_dataloader"):
        StructuredDataset(num_workers=2)  # type: ignore[call-arg]
    with pytest.raises(
        UnknownOptionError, match=r"bucketed: it belongs to TarDataset\.create_data"
    ):
        TarDataset(folder, bucketed=True)  # type: ignore[call-arg]
    with pytest.raises(UnknownOptionError, match=r"target_pixel_aera; did .* .target_pixel_area"):
        TarDataset.create_dataloader(folder, bucketed=True, target_pixel_aera=4)  # type: ignore[call-arg]
    with pytest.raises(
        UnknownOptionError,
        match=r"StructuredDataset has no keyword batch_sise; did you mean 'batch_size'\?$",
    ):
        headrace.open(folder, batch_sise=2)


ENTRIES = [
    *((dataset, "batch_sise", "batch_size") for dataset in DATASETS),
    *((dataset.create_dataloader, "batch_sise", "batch_size") for dataset in DATASETS),
    (access.RowDataset, "colums", "columns"),
    (access.GlobalShuffleSampler, "wordl_size", "world_size"),
    (access.ShardShuffleSampler, "wordl_size", "world_size"),
    (access.BucketBatchSampler, "batchsize", "batch_size"),
    (access.ArrowBackend, "shard_rows_counts", "shard_row_counts"),
    (access.ParquetBackend, "as_file", "as_files"),
    (access.LanceBackend, "versoin", "version"),
    (access.ArrayRecordBackend, "decoder", "decode"),
    (access.TarBackend, "metdata", "metadata"),
    (access.VideoFramesBackend, "windowlength", "window_length"),
    (headrace.TarShards, "metdata", "metadata"),
    (headrace.TarWriter, "shard_byte", "shard_bytes"),
    (headrace.shuffle_into, "targetformat", "target_format"),
    (write.copy_rows, "file_row", "file_rows"),
    (write.write_tar, "shard_byte", "shard_bytes"),
    (write.write_array_record, "groupsize", "group_size"),
    (write.write_video_frames, "qualty", "quality"),
    (headrace.EvenBatchesSplitStrategy, "split_row", "split_rows"),
    (headrace.RoundRobinSplitStrategy, "shufle", "shuffle"),
    (headrace.TargetSizeSplitStrategy, "split_byte", "split_bytes"),
]


def test_keywords_that_are_near_those_of_another_call(folder: Path) -> None:
    dataset = StructuredDataset(folder)
    with pytest.raises(UnknownOptionError, match=r"dataset\.loader has .* bach_size.*'batch_size'"):
        dataset.loader(bach_size=2)  # type: ignore[call-arg]
    with pytest.raises(UnknownOptionError, match=r"StructuredDataset has .*'num_workers'"):
        StructuredDataset(folder, num_worker=2)  # type: ignore[call-arg]


def test_integers_of_numpy_are_integers(folder: Path) -> None:
    dataset = StructuredDataset(
        folder, batch_size=np.int64(8), shuffle=True, shuffle_seed=np.uint8(3)
    )
    assert dataset.batch_size == 8
    assert json.dumps(dataset.state_dict())
    with pytest.raises(OptionError, match="batch_size must be an int of at least 1, not 0"):
        StructuredDataset(folder, batch_size=np.int32(0))


@pytest.mark.parametrize(
    ("public", "wrong", "right"), ENTRIES, ids=lambda v: getattr(v, "__qualname__", v)
)
def test_a_misspelt_keyword_of_any_call(public: Any, wrong: str, right: str) -> None:
    with pytest.raises(UnknownOptionError) as caught:
        public(**{wrong: 1})
    assert isinstance(caught.value, TypeError)
    owner = getattr(public, "__self__", None)
    place = public.__name__ if owner is None else f"{owner.__name__}.{public.__name__}"
    assert str(caught.value).startswith(f"{place} has no keyword {wrong}; did you mean {right!r}")


def test_no_message_names_an_internal_class(folder: Path) -> None:
    with pytest.raises(UnknownOptionError) as caught:
        StructuredDataset.create_dataloader(folder, nonsense_that_is_like_nothing=1)  # type: ignore[call-arg]
    assert "Options" not in str(caught.value)
    assert "__init__" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"output_format": "pandas"}, '"torch", "numpy", "arrow" or "dict", not'),
        ({"on_error": "ignore"}, '"raise" or "skip"'),
        ({"shuffle": 1}, "True or False"),
        ({"batch_size": 0}, "at least 1"),
        ({"batch_size": True}, "at least 1"),
        ({"even": True}, '"drop", "pad" or False'),
        ({"prefetch_bytes": "lots"}, "number of bytes"),
        ({"transform": 3}, "callable"),
        ({"timeout_s": "soon"}, "seconds"),
        ({"num_workers": -1}, "at least 0"),
        ({"mix": 2, "interleave": 2}, "exclude each other"),
        ({"shuffle_buffer_rows": 10, "mix": 2}, "leave one out"),
        ({"cache_bytes": "1GiB"}, "without cache_dir"),
        ({"num_workers": 0, "persistent_workers": True}, "no workers"),
        ({"process_group": object(), "device_mesh": object()}, "give one"),
    ],
)
def test_wrong_values_and_contradictions(folder: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        StructuredDataset.create_dataloader(folder, **given)


@pytest.mark.parametrize("dataset", DATASETS)
def test_every_keyword_is_in_signatures_and_help(dataset: Any) -> None:
    own, of_loader = (
        options.known_options(kind) for kind in (DATASETS[dataset], options.LoaderOptions)
    )
    constructor = inspect.signature(dataset).parameters
    assert set(own) <= set(constructor)
    assert set(of_loader).isdisjoint(constructor)
    assert set(own) | set(of_loader) <= set(inspect.signature(dataset.create_dataloader).parameters)
    help_text = " ".join(
        pydoc.render_doc(dataset.create_dataloader, renderer=pydoc.plaintext).split()
    )
    for name, option in {**own, **of_loader}.items():
        assert f"{name} (" in help_text
        assert option.doc in help_text
        assert option.group
        assert option.doc.endswith(".")
    for parameter in constructor.values():
        assert parameter.kind is not parameter.VAR_KEYWORD


def test_a_dataset_makes_loaders_of_its_own(folder: Path) -> None:
    dataset = headrace.open(folder, batch_size=30)
    first = dataset.loader()
    second = dataset.loader(num_workers=0)
    assert first.dataset is dataset
    assert second.dataset is not dataset
    ids = [batch["id"].tolist() for batch in first]
    assert [len(some) for some in ids] == [30, 30, 30, 10]
    assert dataset.epoch == 1
    assert second.dataset.epoch == 0  # type: ignore[attr-defined]
    assert [batch["id"].tolist() for batch in second] == ids


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_would_make_batches_of_batches_is_refused(folder: Path, workers: int) -> None:
    dataset = StructuredDataset(folder, batch_size=10)
    with pytest.raises(OptionError, match="batch_size=None"):
        list(DataLoader(dataset, batch_size=8, num_workers=workers))
    whole = DataLoader(dataset, batch_size=None, num_workers=workers)
    assert sum(len(batch["id"]) for batch in whole) == 100


def test_a_framework_that_would_make_batches_of_batches_is_refused(folder: Path) -> None:
    dataset = StructuredDataset(folder, batch_size=10)
    shard = IterableDatasetShard(dataset, batch_size=2, num_processes=2, process_index=0)
    with pytest.raises(OptionError, match="batch_size=None"):
        list(DataLoader(shard, batch_size=2))
    with pytest.raises(ValueError, match="batch_sampler"):
        DataLoader(dataset, batch_sampler=[[0, 1]])
    prepared = Accelerator(cpu=True).prepare(DataLoader(dataset, batch_size=2))
    with pytest.raises(OptionError, match="batch_size=None"):
        list(prepared)


def test_buckets_are_keywords_of_the_loader_only(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no effect without bucketed=True"):
        TarDataset.create_dataloader(tmp_path, key="aspect")


def _tables() -> ModuleType:
    path = ROOT / "scripts" / "write_keyword_tables.py"
    spec = importlib.util.spec_from_file_location("write_keyword_tables", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "page",
    sorted((ROOT / "docs").rglob("*.md")),
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_tables_of_keywords_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert _tables().written(text) == text, "run: python scripts/write_keyword_tables.py"


def test_the_reference_has_all_keywords() -> None:
    text = (ROOT / "docs" / "reference" / "keywords.md").read_text(encoding="utf-8")
    kinds = [
        kind
        for name, kind in vars(options).items()
        if is_typeddict(kind) and name.endswith("Options") and not name.startswith("_")
    ]
    assert options.StructuredOptions in kinds
    for kind in kinds:
        assert all(f"| `{name}` |" in text for name in options.known_options(kind))


# --- sizes with units


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        (10**30, 10**30),
        ("1", 1),
        ("64 B", 64),
        ("1k", 1000),
        ("1KB", 1000),
        ("1kib", 1024),
        (" 128MiB ", 128 << 20),
        ("1.5 kB", 1500),
        ("0.5GiB", 1 << 29),
        ("2TB", 2 * 10**12),
        ("3 TiB", 3 << 40),
        ("9007199254740993", 2**53 + 1),
        ("0.1kB", 100),
    ],
)
def test_sizes(text: int | str, size: int) -> None:
    assert parse_bytes("split_bytes", text) == size


@pytest.mark.parametrize(
    "wrong",
    [0, -1, True, 1.5, None, "", "MiB", "1 MiBs", "-1", "1e6", "0", "0.5B", "1..5k", "1,5k", [1]],
)
def test_what_is_no_size_is_named(wrong: Any) -> None:
    with pytest.raises(OptionError) as caught:
        parse_bytes("prefetch_bytes", wrong)
    assert "prefetch_bytes" in str(caught.value)
    assert repr(wrong) in str(caught.value)


def test_an_absurd_size_is_no_crash() -> None:
    assert parse_bytes("split_bytes", "9" * 400) == int("9" * 400)


def test_the_formats_of_type_checkers_are_those_of_the_code() -> None:
    assert set(get_args(FileFormat)) == set(FORMAT_NAMES)
