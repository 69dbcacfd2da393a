"""Which deletes apply to which data file: the rules, their sharing, their speed."""

import math
import pickle
import random
import time
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, NestedField, StructType

from penstock.errors import ReadError
from penstock.tables.iceberg.delete_groups import ALL_PATHS, plain_bounds
from penstock.tables.iceberg.delete_index import DeleteIndex, read_delete_entries
from penstock.tables.iceberg.deletes import DeletesOf, DeletionVector, plain_path, store_path

PATH_ID = 2147483546
PARTITIONED = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"), spec_id=1)
OTHER_SPEC = PartitionSpec(PartitionField(2, 1001, IdentityTransform(), "q"), spec_id=2)
ALL_VOID = PartitionSpec(PartitionField(1, 1000, VoidTransform(), "p"), spec_id=3)
SPECS = {0: PartitionSpec(spec_id=0), 1: PARTITIONED, 2: OTHER_SPEC, 3: ALL_VOID}


def entry(
    path: str,
    age: int | None = 5,
    *,
    spec: int = 1,
    partition: tuple[Any, ...] = (7,),
    content: DataFileContent = DataFileContent.POSITION_DELETES,
    format: FileFormat = FileFormat.PARQUET,
    bounds: tuple[str | bytes | None, str | bytes | None] = (None, None),
    **more: Any,
) -> ManifestEntry:
    raw = [b.encode() if isinstance(b, str) else b for b in bounds]
    file = DataFile.from_args(
        _table_format_version=3,
        **{
            "content": content,
            "file_path": path,
            "file_format": format,
            "partition": Record(*partition),
            "record_count": 3,
            "file_size_in_bytes": 100,
            "lower_bounds": None if raw[0] is None else {PATH_ID: raw[0]},
            "upper_bounds": None if raw[1] is None else {PATH_ID: raw[1]},
            **more,
        },
    )
    file.spec_id = spec
    return ManifestEntry.from_args(
        _table_format_version=3,
        status=ManifestEntryStatus.ADDED,
        snapshot_id=1,
        sequence_number=age,
        file_sequence_number=age,
        data_file=file,
    )


def equality(path: str, age: int = 5, ids: tuple[int, ...] = (1,), **more: Any) -> ManifestEntry:
    kind = DataFileContent.EQUALITY_DELETES
    return entry(path, age, content=kind, equality_ids=list(ids), **more)


def vector(path: str, data_path: str, age: int = 5, **more: Any) -> ManifestEntry:
    return entry(
        path,
        age,
        format=FileFormat.PUFFIN,
        **{
            "referenced_data_file": data_path,
            "content_offset": 4,
            "content_size_in_bytes": 40,
            **more,
        },
    )


def found(
    entries: list[ManifestEntry],
    path: str = "s3://b/data.parquet",
    age: int | None = 5,
    spec: int = 1,
    partition: tuple[Any, ...] = (7,),
) -> DeletesOf:
    index = DeleteIndex(entries, SPECS)
    return index.of(path, sequence_number=age, spec_id=spec, partition=Record(*partition))


def names(deletes: DeletesOf) -> list[str]:
    files = [*deletes.positions, *deletes.equalities]
    return sorted(f.path for f in files) + ([deletes.vector.path] if deletes.vector else [])


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


def test_bounds_may_be_cut_short() -> None:
    deletes = [
        entry("below", bounds=("s3://b/a", "s3://b/c")),
        entry("holds", bounds=("s3://b/d", "s3://b/e")),
        entry("from", bounds=("s3://b/data.parquet", None)),
        entry("to", bounds=(None, "s3://b/data.parquet")),
        entry("above", bounds=("s3://b/data.parquet2", "s3://b/z")),
        entry("any"),
    ]
    assert names(found(deletes)) == ["any", "from", "holds", "to"]


def test_a_vector_replaces_position_deletes_but_not_equality_deletes() -> None:
    data = "s3://b/data.parquet"
    deletes = [entry("d"), entry("one", bounds=(data, data)), equality("e", 6), vector("v", data)]
    assert names(found(deletes)) == ["e", "v"]
    assert found(deletes).vector == DeletionVector("v", 100, 4, 40, 3)
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
        (vector("v", "d", content_offset=None), "v: .* does not say where"),
        (equality("e", 5, ids=()), "e: .* by which columns"),
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
    with pytest.raises(ReadError, match=r"a\.avro: .*Avro.*compact"):
        found(deletes)


def test_sequence_numbers_of_version_1_are_0() -> None:
    assert names(found([entry("d", None), equality("e", 1)], age=None)) == ["d", "e"]


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


LOCAL = st.sampled_from(["/", "file:/", "file:///", "file://", "s3://", "file:/$", "file:"])
PATHS = st.builds(str.__add__, LOCAL, st.text("ab/$", max_size=3))


@given(st.lists(PATHS, min_size=1), st.integers(1, 12))
def test_bounds_hold_every_path_that_is_between_them(paths: list[str], cut: int) -> None:
    """Whatever spellings a delete file mixes, and however short its bounds are cut."""
    raw = sorted(path.encode() for path in paths)
    upper = raw[-1] if len(raw[-1]) <= cut else raw[-1][: cut - 1] + bytes([raw[-1][cut - 1] + 1])
    low, high = plain_bounds(raw[0][:cut], upper)
    for path in paths:
        assert low <= plain_path(path).encode() <= high


def test_bounds_that_are_missing_or_contradict_hold_all_paths() -> None:
    assert plain_bounds(None, None) == ALL_PATHS
    assert plain_bounds(b"s3://z", b"s3://a") == ALL_PATHS


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
    within = kind == "position" or f"s3://{min(one, other)}" <= path <= f"s3://{max(one, other)}"
    return age <= delete_age and within and (same or (kind == "bounded" and one == other))


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


def test_data_files_that_share_deletes_share_the_object() -> None:
    index = DeleteIndex([entry("d", 9), equality("e", 9, spec=0, partition=())], SPECS)
    all_of_them = [
        index.of(f"s3://b/{n:040}", sequence_number=n % 5, spec_id=1, partition=(7,))
        for n in range(100_000)
    ]
    assert len({id(deletes) for deletes in all_of_them}) == 1
    assert len(pickle.dumps(all_of_them)) < 300_000
    assert pickle.loads(pickle.dumps(all_of_them[:1])) == all_of_them[:1]


def test_a_stream_of_upserts_pickles_as_one_list() -> None:
    """File n has all deletes after it: 2,000 files, two million pairs."""
    entries = [equality(f"s3://b/delete-{n}", n + 1) for n in range(2_000)]
    index = DeleteIndex(entries, SPECS)
    all_of_them = [
        index.of(f"s3://b/{n}", sequence_number=n, spec_id=1, partition=(7,)) for n in range(2_000)
    ]
    assert [len(deletes.equalities) for deletes in all_of_them] == list(range(2_000, 0, -1))
    assert len(pickle.dumps(all_of_them)) < 500_000
    again = pickle.loads(pickle.dumps(all_of_them[1_990]))
    assert again == all_of_them[1_990]
    assert hash(again.equalities) == hash(all_of_them[1_990].equalities)
    assert [file.path for file in again.equalities][:2] == [
        "s3://b/delete-1990",
        "s3://b/delete-1991",
    ]
    assert again.equalities[-1].path == "s3://b/delete-1999"


@pytest.mark.parametrize(
    "shape", ["one partition", "many", "exact", "wide bounds", "narrow bounds", "upserts"]
)
def test_ten_thousand_of_each_take_no_time(shape: str) -> None:
    count = 10_000
    ordered = [f"s3://bucket/warehouse/db/table/data/{n:032x}.parquet" for n in range(count)]
    paths = random.Random(0).sample(ordered, count)

    def delete(n: int) -> ManifestEntry:
        if shape == "exact":
            return entry(f"d{n}", n, bounds=(paths[n], paths[n]))
        if shape == "wide bounds":
            return entry(f"d{n}", count, bounds=tuple(sorted((paths[n], paths[n - 1]))))
        if shape == "narrow bounds":
            return entry(f"d{n}", count, bounds=(ordered[n - 5 if n > 5 else 0], ordered[n]))
        if shape == "upserts":
            return equality(f"d{n}", n)
        return entry(f"d{n}", n, partition=(n % 1000,) if shape == "many" else (7,))

    entries = [delete(n) for n in range(count)]
    began = time.process_time()
    index = DeleteIndex(entries, SPECS)
    for n, path in enumerate(paths):
        where = (n % 1000,) if shape == "many" else (7,)
        index.of(path, sequence_number=n, spec_id=1, partition=where)
    assert time.process_time() - began < 2


def test_manifests_are_read_with_what_version_3_says(tmp_path: Path) -> None:
    """pyiceberg reads them as of version 2: no vector would be found."""
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"), spec_id=1)
    type_ = StructType(NestedField(1000, "p", IntegerType(), required=False))
    schema = manifest_entry_schema_with_data_file(3, data_file_with_partition(type_, 3))
    gone = entry("gone", 3)
    gone.status = ManifestEntryStatus.DELETED
    inherited = vector("v", "s3://b/data.parquet", None)
    old = equality("e", 2, ids=(2, 1))
    old.status = ManifestEntryStatus.EXISTING
    path = str(tmp_path / "manifest.avro")
    io = PyArrowFileIO()
    metadata = {"format-version": "3", "content": "deletes"}
    with AvroOutputFile(
        io.new_output(path), file_schema=schema, schema_name="manifest_entry", metadata=metadata
    ) as writer:
        writer.write_block([inherited, old, gone])
    manifest = ManifestFile.from_args(
        manifest_path=path,
        manifest_length=1,
        partition_spec_id=1,
        content=ManifestContent.DELETES,
        sequence_number=8,
        min_sequence_number=2,
        added_snapshot_id=1,
    )
    entries = read_delete_entries(manifest, io)
    assert [read.sequence_number for read in entries] == [8, 2]
    index = DeleteIndex(entries, {1: spec})
    first = index.of("s3://b/data.parquet", sequence_number=1, spec_id=1, partition=(7,))
    assert first.vector == DeletionVector("v", 100, 4, 40, 3)
    assert [file.field_ids for file in first.equalities] == [(1, 2)]
    later = index.of("s3://b/data.parquet", sequence_number=8, spec_id=1, partition=(7,))
    assert later.vector is not None
    assert not later.equalities
