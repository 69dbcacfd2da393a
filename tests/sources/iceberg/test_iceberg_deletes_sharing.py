"""Deletes of many data files: read from manifests, shared, and soon found."""

import pickle
import random
import time
from pathlib import Path

import pytest
from delete_entries import SPECS, entry, equality, names_of, vector
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, NestedField, StructType

from headrace.sources.iceberg._deletes import (
    DeleteIndex,
    Deletes,
    equality_deletes,
    read_delete_entries,
)
from headrace.sources.tables._vectors import DeletionVector


def of(index: DeleteIndex, path: str, age: int, value: int = 7) -> Deletes:
    return index.of(path, sequence_number=age, spec_id=1, partition=(value,))[0]


def test_data_files_that_share_deletes_share_the_object() -> None:
    index = DeleteIndex([entry("d", 9), equality("e", 9, spec=0, partition=())], SPECS)
    all_of_them = [of(index, f"s3://b/{n:040}", n % 5) for n in range(100_000)]
    assert len({id(deletes) for deletes in all_of_them}) == 1
    assert len(pickle.dumps(all_of_them)) < 300_000
    assert pickle.loads(pickle.dumps(all_of_them[:1])) == all_of_them[:1]


def test_a_stream_of_upserts_pickles_as_one_list() -> None:
    """File n has all deletes after it: 2,000 files, two million pairs."""
    entries = [equality(f"s3://b/delete-{n}", n + 1) for n in range(2_000)]
    index = DeleteIndex(entries, SPECS)
    all_of_them = [of(index, f"s3://b/{n}", n) for n in range(2_000)]
    assert [len(names_of(deletes)) for deletes in all_of_them[::100]] == list(range(2_000, 0, -100))
    assert len(pickle.dumps(all_of_them)) < 500_000
    again = pickle.loads(pickle.dumps(all_of_them[1_990]))
    assert again == all_of_them[1_990]
    assert hash(again) == hash(all_of_them[1_990])
    assert names_of(again) == [f"s3://b/delete-{n}" for n in range(1_990, 2_000)]


@pytest.mark.parametrize("shape", ["one partition", "exact", "upserts"])
def test_ten_thousand_of_each_take_no_time(shape: str) -> None:
    count = 10_000
    ordered = [f"s3://bucket/warehouse/db/table/data/{n:032x}.parquet" for n in range(count)]
    paths = random.Random(0).sample(ordered, count)

    def delete(n: int) -> ManifestEntry:
        if shape == "exact":
            return entry(f"d{n}", n, bounds=(paths[n], paths[n]))
        if shape == "upserts":
            return equality(f"d{n}", n)
        return entry(f"d{n}", n)

    entries = [delete(n) for n in range(count)]
    began = time.process_time()
    index = DeleteIndex(entries, SPECS)
    for n, path in enumerate(paths):
        of(index, path, n)
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
    first, found = index.of("s3://b/data.parquet", sequence_number=1, spec_id=1, partition=(7,))
    assert found == DeletionVector("v", 4, 40, 3, 100)
    assert list(equality_deletes(first)) == [(1, 2)]
    later, found = index.of("s3://b/data.parquet", sequence_number=8, spec_id=1, partition=(7,))
    assert found is not None
    assert not equality_deletes(later)
