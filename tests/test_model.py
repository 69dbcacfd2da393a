"""A FileList returns the files that it was made of, and holds them in few objects."""

from __future__ import annotations

import copy
import pickle

import pytest
from file_makers import grouped, mixed_files
from hypothesis import given

from headrace.model import DataFileInfo, FileList, IcebergDataFileInfo, RowGroups

FILES = [
    DataFileInfo("plain"),
    DataFileInfo("all", 100, 7, RowGroups.of([3, 4], [30, 40]), "etag", 5, False),
    DataFileInfo("empty", 0, 0, RowGroups.of([], []), "", 0, True),
    DataFileInfo("counted", None, 3),
    DataFileInfo("tagged", 5, etag="x"),
    grouped("pruned", [5, 5, 5], [1, 2, 3], keep=[1]),
    DataFileInfo("unicode ü %20 [1]", 1 << 50, 1 << 50),
]


def test_every_combination_of_fields_comes_back() -> None:
    listed = FileList(FILES)
    assert list(listed) == FILES
    assert len(listed) == len(FILES)
    assert repr(listed) == "<FileList of 7 files>"


@given(files=mixed_files())
def test_any_files_come_back(files: list[DataFileInfo]) -> None:
    assert list(FileList(files)) == files
    assert list(pickle.loads(pickle.dumps(FileList(files)))) == files


def test_indices_and_slices() -> None:
    listed = FileList(FILES)
    assert listed[-1] == FILES[-1]
    assert listed[1:6:2] == FILES[1:6:2]
    assert listed[::-1] == FILES[::-1]
    assert listed[10:] == []
    assert FILES[3] in listed
    assert listed.index(FILES[2]) == 2
    for beyond in (7, -8):
        with pytest.raises(IndexError):
            listed[beyond]


def test_values_are_plain_integers() -> None:
    file = FileList(FILES)[1]
    assert [type(v) for v in (file.file_size, file.record_count, file.body_offset)] == [int] * 3
    assert type(file.splittable) is bool


def test_copies_and_pickles() -> None:
    for again in (copy.deepcopy(FileList(FILES)), pickle.loads(pickle.dumps(FileList(FILES)))):
        assert list(again) == FILES
    assert list(FileList(FileList(FILES))) == FILES
    assert list(FileList()) == []
    assert list(pickle.loads(pickle.dumps(FileList()))) == []


def test_files_of_iceberg_keep_what_is_theirs() -> None:
    files = [
        IcebergDataFileInfo("a", 10, 3, partition={"day": "2026-01-01", "n": None}, snapshot_id=9),
        IcebergDataFileInfo("b", row_groups=RowGroups.of([2], [2])),
        DataFileInfo("c"),
    ]
    listed = FileList(files)
    assert list(listed) == files
    assert listed[0].partition == {"day": "2026-01-01", "n": None}  # type: ignore[attr-defined]
    again = pickle.loads(pickle.dumps(listed))
    assert list(again) == files
    assert type(again[1]) is IcebergDataFileInfo


def test_many_files_pickle_small() -> None:
    groups = RowGroups.of([100] * 10, [1000] * 10)
    listed = FileList(DataFileInfo(f"f{i:06}", 10_000, 1000, groups) for i in range(10_000))
    assert len(pickle.dumps(listed)) < 10_000 * 10 * 24 + 10_000 * 80


def test_row_groups_compare_by_value_and_pick_by_index() -> None:
    groups = RowGroups.of([5, 6, 7], [1, 2, 3])
    assert groups == RowGroups.of([5, 6, 7], [1, 2, 3])
    assert groups != RowGroups.of([5, 6, 8], [1, 2, 3])
    assert groups != "groups"
    assert groups.keep([2, 0]).start.tolist() == [11, 0]
    assert len(groups.keep([])) == 0
    assert groups.keep([]) == RowGroups.of([], [])
