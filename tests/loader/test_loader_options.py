"""A wrong option is refused by name when it is given; a choice made by the library is logged."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from small_files import write_csv, write_parquet
from worker_code import doubled

from headrace import HeadraceError, OptionError, RoundRobinSplitStrategy, StructuredDataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"), [(10, 5)])


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": -1},
        {"batch_size": 1.5},
        {"batch_size": "10"},
        {"batch_size": True},
        {"batch_size": None},
        {"batch_size": 2**63},
        {"num_workers": -1},
        {"num_workers": 1.0},
        {"num_workers": "2"},
        {"drop_last": 1},
        {"shuffle": "yes"},
        {"shuffle": None},
        {"shuffle_seed": "42"},
        {"shuffle_seed": 1.5},
        {"shuffle_seed": None},
        {"split_rows": 0},
        {"split_rows": "10"},
        {"split_bytes": 0},
        {"split_bytes": "x"},
        {"split_bytes": -5},
        {"split_bytes": 1.5},
        {"mix": 0},
        {"mix": 2.0},
        {"mix": 10**30, "shuffle": True},
        {"shuffle_buffer_rows": 2**63, "shuffle": True},
        {"lanes": 0},
        {"lanes": "all"},
        {"lanes": 10**9},
        {"lanes": 10**30},
        {"num_workers": 10**9},
        {"prefetch_bytes": "x"},
        {"prefetch_bytes": 0},
        {"prefetch_factor": 0},
        {"persistent_workers": 1},
        {"pin_memory": "yes"},
        {"timeout": "soon"},
        {"timeout": -1},
        {"worker_init_fn": 3},
        {"multiprocessing_context": "threads"},
        {"output_format": "pandas"},
        {"output_format": None},
        {"transform": 3},
        {"collate_fn": "f"},
        {"nulls": 3},
        {"nulls": "zero"},
        {"ragged": "square"},
        {"on_error": "ignore"},
        {"on_error": None},
        {"split_strategy": 7},
        {"split_strategy": RoundRobinSplitStrategy},
        {"split_strategy": "round robin"},
        {"columns": "id"},
        {"columns": []},
        {"schema": {"id": int}},
        {"partitioning": 7},
        {"storage_options": 7},
        {"format_options": 7},
        {"filters": "id > 3"},
        {"filters": 7},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_name(data: Path, options: dict[str, Any]) -> None:
    name = next(iter(options)).removeprefix("num_")
    settings = {"num_workers": 0, **options}
    with pytest.raises(HeadraceError, match=name):
        StructuredDataset.create_dataloader(data, **settings)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"split_strategy": RoundRobinSplitStrategy(), "shuffle": True}, "shuffle.*split_strategy"),
        ({"split_strategy": RoundRobinSplitStrategy(), "split_rows": 5}, "split_rows"),
        ({"split_strategy": RoundRobinSplitStrategy(), "split_bytes": 5}, "split_bytes"),
        ({"output_format": "arrow", "nulls": "mask"}, "nulls"),
        ({"output_format": "dict", "nulls": {"id": 0}}, "nulls"),
        ({"output_format": "arrow", "ragged": "pad"}, "ragged"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    data: Path, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(OptionError, match=named):
        StructuredDataset.create_dataloader(data, num_workers=0, **options)


def test_text_cannot_be_cut_by_rows(tmp_path: Path) -> None:
    write_csv(tmp_path, [(10, 5)])
    with pytest.raises(OptionError, match=r"split_rows.*split_bytes"):
        StructuredDataset.create_dataloader(tmp_path, "csv", num_workers=0, split_rows=5)


def test_an_unknown_format_lists_the_known_ones(data: Path) -> None:
    with pytest.raises(OptionError, match=r"parquet, orc, csv.*avro"):
        StructuredDataset.create_dataloader(data, "avro", num_workers=0)


def test_an_unknown_option_is_a_type_error(data: Path) -> None:
    with pytest.raises(TypeError, match="bach_size"):
        StructuredDataset.create_dataloader(data, bach_size=3)  # type: ignore[call-arg]


def test_no_workers_are_chosen_without_code_of_the_user(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="headrace"):
        loader, _ = StructuredDataset.create_dataloader(data)
    assert loader.num_workers == 0
    assert "num_workers=0" in caplog.text


@pytest.mark.parametrize("name", ["transform", "collate_fn"])
def test_workers_are_chosen_for_code_of_the_user(
    data: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="headrace"):
        loader, _ = StructuredDataset.create_dataloader(data, **{name: doubled})
    assert loader.num_workers >= 1
    assert f"num_workers={loader.num_workers}" in caplog.text


def test_a_number_that_is_given_is_not_logged_as_a_choice(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="headrace"):
        StructuredDataset.create_dataloader(data, num_workers=0)
    assert "num_workers" not in caplog.text


def test_no_workers_cannot_be_kept(data: Path) -> None:
    with pytest.raises(OptionError, match="persistent_workers"):
        StructuredDataset.create_dataloader(data, num_workers=0, persistent_workers=True)
    loader, _ = StructuredDataset.create_dataloader(data, persistent_workers=True)
    assert loader.num_workers == 0, "a default of the library does not contradict the option"
