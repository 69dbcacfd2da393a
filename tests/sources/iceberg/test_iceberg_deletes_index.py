"""Which deletes apply to which data file: the rules."""

import math
import pickle
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from delete_entries import SPECS, entry, equality, found, names, vector
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntry

from headrace.errors import ReadError
from headrace.sources.iceberg._deletes import DeleteIndex, plain_path
from headrace.sources.tables._catalog import store_path
from headrace.sources.tables._vectors import DeletionVector


@pytest.mark.parametrize(("data_age", "applies"), [(4, True), (5, True), (6, False)])
def test_position_deletes_apply_to_what_is_as_old_or_older(data_age: int, applies: bool) -> None:
    assert names(found([entry("d", 5)], age=data_age)) == (["d"] if applies else [])


@pytest.mark.parametrize(("data_age", "applies"), [(4, True), (5, False), (6, False)])
def test_equality_deletes_apply_to_what_is_strictly_older(data_age: int, applies: bool) -> None:
    assert names(found([equality("e", 5)], age=data_age)) == (["e"] if applies else [])


@pytest.mark.parametrize("kind", [entry, equality])
def test_deletes_apply_in_their_own_partition_and_spec(kind: Any) -> None:
    deletes = [kind("d", 5)]
    assert names(found(deletes, age=1)) == ["d"]
    assert names(found(deletes, age=1, partition=(8,))) == []
    assert names(found(deletes, age=1, partition=(None,))) == []
    assert names(found(deletes, age=1, spec=2)) == []


@pytest.mark.parametrize(("spec", "own"), [(0, ()), (3, (None,))])
def test_equality_deletes_without_partitions_apply_everywhere(
    spec: int, own: tuple[Any, ...]
) -> None:
    deletes = [equality("e", 5, spec=spec, partition=own)]
    assert names(found(deletes, age=1)) == ["e"]
    assert names(found(deletes, age=1, spec=2, partition=("x",))) == ["e"]
    assert names(found(deletes, age=1, spec=0, partition=())) == ["e"]
    assert names(found(deletes, age=5)) == []


def test_position_deletes_without_partitions_apply_to_their_own_spec_only() -> None:
    deletes = [entry("d", 5, spec=0, partition=())]
    assert names(found(deletes)) == []
    assert names(found(deletes, spec=0, partition=())) == ["d"]


@pytest.mark.parametrize(
    "value",
    [None, 0, "", "a", b"\x00", date(2024, 1, 2), Decimal("1.10"), math.nan, -0.0, True],
    ids=repr,
)
def test_partitions_are_equal_by_their_values(value: Any) -> None:
    copies = pickle.loads(pickle.dumps((value, value)))
    other = float("nan") if isinstance(value, float) and math.isnan(value) else copies[1]
    deletes = [entry("d", 5, partition=(copies[0],)), equality("e", 6, partition=(copies[0],))]
    assert names(found(deletes, partition=(other,))) == ["d", "e"]
    assert names(found(deletes, partition=("another",))) == []


def test_the_two_zeros_are_two_partitions() -> None:
    assert names(found([entry("d", partition=(-0.0,))], partition=(0.0,))) == []


def test_a_delete_that_names_one_file_applies_to_that_file() -> None:
    one = "s3://b/data.parquet"
    for deletes in (
        [entry("d", 5, bounds=(one, one))],
        [entry("d", 5, referenced_data_file=one)],
        [entry("d", 5, referenced_data_file=one, spec=2)],
    ):
        assert names(found(deletes)) == ["d"]
        assert names(found(deletes, age=6)) == []
        assert names(found(deletes, path="s3://b/data.parque")) == []


def test_a_vector_replaces_position_deletes_but_not_equality_deletes() -> None:
    data = "s3://b/data.parquet"
    deletes = [entry("d"), entry("one", bounds=(data, data)), equality("e", 6), vector("v", data)]
    assert names(found(deletes)) == ["e", "v"]
    assert found(deletes)[1] == DeletionVector("v", 4, 40, 3, 100)
    assert names(found(deletes, path="s3://b/data2.parquet")) == ["d", "e"]


def test_a_vector_that_is_older_than_its_file_does_not_apply() -> None:
    data = "s3://b/data.parquet"
    assert names(found([entry("d", 9), vector("v", data, 5)], age=6)) == ["d"]


def test_two_vectors_of_a_file_are_an_error() -> None:
    deletes = [vector("v1", "s3://b/data.parquet", 4), vector("v2", "s3://b/data.parquet", 5)]
    with pytest.raises(ReadError, match=r"data\.parquet has two deletion vectors, in v1 and v2"):
        DeleteIndex(deletes, SPECS)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (vector("v", "d", content_offset=None), "v: .* manifest does not give the position"),
        (equality("e", 5, ids=()), "e: .* does not name the columns"),
        (entry("x", content=DataFileContent.DATA), "x: content"),
        (entry("x", key_metadata=b"k"), "x: encrypted"),
    ],
)
def test_what_is_not_understood_is_an_error(broken: ManifestEntry, message: str) -> None:
    with pytest.raises(ReadError, match=message):
        DeleteIndex([broken], SPECS)


def test_avro_is_an_error_only_where_it_applies() -> None:
    deletes = [entry("a.avro", 5, format=FileFormat.AVRO), entry("b", 9)]
    assert names(found(deletes, age=6)) == ["b"]
    with pytest.raises(ReadError, match=r"a\.avro: .*avro.*compact"):
        found(deletes)


def test_sequence_numbers_of_version_1_are_0() -> None:
    assert names(found([entry("d", None), equality("e", 1)], age=None)) == ["d", "e"]


DELETES = st.lists(
    st.tuples(
        st.sampled_from(["position", "equality", "bounded", "exact"]),
        st.integers(0, 6),
        st.sampled_from([0, 1, 2]),
        st.sampled_from([1, 2, None]),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    max_size=12,
)


def applies(
    delete: tuple[Any, ...], path: str, age: int, spec: int, partition: tuple[Any, ...]
) -> bool:
    """The rules, one delete and one data file at a time."""
    kind, delete_age, delete_spec, value, one, other = delete
    same = delete_spec == spec and (() if delete_spec == 0 else (value,)) == partition
    if kind == "equality":
        return age < delete_age and (same or delete_spec == 0)
    if kind == "exact":
        return age <= delete_age and path == f"s3://{one}"
    if kind == "bounded" and one == other:
        return age <= delete_age and path == f"s3://{one}"
    return age <= delete_age and same


@given(DELETES, st.integers(0, 6), st.sampled_from([0, 1, 2]), st.integers(0, 9))
def test_the_index_agrees_with_the_rules(
    deletes: list[tuple[Any, ...]], age: int, spec: int, file: int
) -> None:
    entries = []
    for number, (kind, delete_age, delete_spec, value, one, other) in enumerate(deletes):
        where = {"spec": delete_spec, "partition": () if delete_spec == 0 else (value,)}
        low, high = f"s3://{min(one, other)}", f"s3://{max(one, other)}"
        make = {
            "position": lambda name, age, where: entry(name, age, **where),
            "equality": lambda name, age, where: equality(name, age, **where),
            "bounded": lambda name, age, where, b=(low, high): entry(name, age, bounds=b, **where),
            "exact": lambda name, age, where, o=one: entry(
                name, age, referenced_data_file=f"s3://{o}", **where
            ),
        }[kind]
        entries.append(make(f"d{number:02}", delete_age, where))
    for partition in [()] if spec == 0 else [(1,), (2,), (None,)]:
        path = f"s3://{file}"
        wanted = [
            f"d{n:02}" for n, d in enumerate(deletes) if applies(d, path, age, spec, partition)
        ]
        assert names(found(entries, path, age, spec, partition)) == wanted


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("file:///x/y", "/x/y"),
        ("file:/x/y", "/x/y"),
        ("/x/y", "/x/y"),
        ("file://host/x", "file://host/x"),
        ("s3://b/file:/x", "s3://b/file:/x"),
    ],
)
def test_plain_paths(path: str, plain: str) -> None:
    assert plain_path(path) == plain


def test_paths_are_opened_as_stores_call_them() -> None:
    assert store_path("s3a://b/x") == store_path("s3n://b/x") == "s3://b/x"
    assert store_path("file:///x") == "/x"
    assert store_path("gs://b/s3a://x") == "gs://b/s3a://x"


def test_a_local_file_is_the_same_however_it_is_written() -> None:
    spellings = ["/w/a", "file:/w/a", "file:///w/a"]
    for one in spellings:
        for other in spellings:
            assert names(found([entry("d", bounds=(one, one))], path=other)) == ["d"]
            assert names(found([entry("d", bounds=(one, one + "z"))], path=other)) == ["d"]
            assert names(found([vector("v", one)], path=other)) == ["v"]
