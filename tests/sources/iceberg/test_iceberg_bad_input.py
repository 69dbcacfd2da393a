"""Tables, catalogs and files that are not as they should be: every error says what and where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numbered_tables import SCHEMA, make_table, numbers
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFileContent
from refused_tables import local, refused
from servers.processes import free_port
from writers.catalogs import WritingCatalog
from writers.committing import commit_files, data_files, describe_file
from writers.data_files import append_file, append_orc_data, append_rows, parquet_files
from writers.delete_files import append_position_deletes

from headrace import StructuredDataset
from headrace.errors import (
    HeadraceError,
    MissingExtraError,
    NothingFoundError,
    OptionError,
    ReadError,
    SchemaError,
)

ROOT = Path(__file__).parents[3]


# --- catalogs


def test_a_table_or_namespace_that_is_not_there(catalog: WritingCatalog) -> None:
    make_table(catalog, files=1)
    config = catalog.properties_for_users
    for name in ("tests.db.missing", "tests.nowhere.t", "other.db.t", "tests.db.t.t"):
        message = refused(NothingFoundError, repr(name), config=config, name=name)
        assert repr(name.split(".")[0]) in message
        assert "'name'" in message


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"type": "nosuch"}, "nosuch"),
        ({"uri": "ftp://x"}, "ftp://x"),
        ({}, "catalog of table 'tests.db.t'"),
        ("sqlite:///x", "must be a mapping of properties for pyiceberg, or a catalog, not a str"),
        (7, "not a int"),
        ({"type": "sql"}, "catalog of table 'tests.db.t'"),
        ({"type": "sql", "uri": "nosuch://x"}, "catalog of table 'tests.db.t'"),
        ({"py-catalog-impl": "no.such.Catalog"}, "no.such.Catalog"),
    ],
    ids=str,
)
def test_what_is_no_catalog(config: Any, said: str) -> None:
    refused(HeadraceError, said, config=config)


@pytest.mark.parametrize("kind", ["rest", "sql", "glue"])
def test_a_catalog_that_cannot_be_reached_is_told_soon(kind: str, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    config = {
        "rest": {"uri": url},
        "sql": {"uri": f"sqlite:///{tmp_path}/no/folder/catalog.db"},
        "glue": {
            "glue.endpoint": url,
            "glue.region": "us-east-1",
            "glue.access-key-id": "k",
            "glue.secret-access-key": "s",
            "glue.max-retries": 1,
        },
    }[kind]
    begun = time.monotonic()
    refused(ReadError, "tests.db.t", "cannot be reached", config={"type": kind, **config})
    assert time.monotonic() - begun < 100


def test_metadata_that_is_gone_or_broken(catalog: WritingCatalog) -> None:
    table = make_table(catalog, files=1)
    config = catalog.properties_for_users
    metadata = local(table.metadata_location)
    written = metadata.read_bytes()
    metadata.unlink()
    refused(ReadError, "'tests.db.t'", metadata.name, config=config)
    metadata.write_bytes(b"{")
    refused(HeadraceError, "'tests.db.t'", config=config)
    metadata.write_bytes(written)
    manifests = local(table.metadata.current_snapshot().manifest_list)
    written = manifests.read_bytes()
    manifests.unlink()
    refused(ReadError, "'tests.db.t'", manifests.name, config=config)
    manifests.write_bytes(written[:100])
    refused(ReadError, "'tests.db.t'", config=config)
    manifests.write_bytes(b"no avro" * 100)
    refused(ReadError, "'tests.db.t'", config=config)


def test_types_that_are_not_known(catalog: WritingCatalog) -> None:
    table = make_table(catalog, files=1)
    path = local(table.metadata_location)
    path.write_text(path.read_text().replace('"double"', '"variant"'))
    refused(HeadraceError, "'tests.db.t'", "variant", config=catalog.properties_for_users)


# --- what is wanted of a table


def test_columns_and_filters_that_are_not_there(catalog: WritingCatalog) -> None:
    make_table(catalog, files=1)
    refused(SchemaError, "'y'", config=catalog, name="db.t", columns=["id", "y"])
    refused(HeadraceError, "y", config=catalog, name="db.t", filters=[("y", "==", 1)])
    refused(
        OptionError, "expression as filters=", config=catalog, name="db.t", scan_filter="id = 1"
    )
    refused(
        OptionError, "scan_filter", "'y'", config=catalog, name="db.t", scan_filter=EqualTo("y", 1)
    )
    refused(
        OptionError, "scan_filter", config=catalog, name="db.t", scan_filter=EqualTo("id", "text")
    )


# --- data files


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_file_that_is_gone(catalog: WritingCatalog, num_workers: int) -> None:
    table = make_table(catalog)
    path = local(data_files(table)[1].file_path)
    path.unlink()
    refused(ReadError, str(path), config=catalog, name="db.t", num_workers=num_workers)


def test_a_data_file_that_is_none(catalog: WritingCatalog) -> None:
    table = make_table(catalog)
    path = local(data_files(table)[1].file_path)
    path.write_bytes(b"x" * path.stat().st_size)
    refused(ReadError, str(path), config=catalog, name="db.t")


@pytest.mark.parametrize("options", [{}, {"split_rows": 15}, {"num_workers": 2}], ids=str)
@pytest.mark.parametrize("rows", [30, 39, 41, 50])
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_another_number_of_rows_than_the_manifest_says(
    catalog: WritingCatalog, file_format: str, rows: int, options: dict[str, Any]
) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    append = append_orc_data if file_format == "orc" else append_rows
    (path,) = append(table, numbers(0, 40))
    size = local(path).stat().st_size
    commit_files(table, removed=lambda file: True)
    append_file(table, path, file_format=file_format, rows=rows, size=size)
    message = refused(ReadError, str(local(path)), config=catalog, name="db.t", **options)
    assert "40" in message


def test_data_files_in_avro(catalog: WritingCatalog) -> None:
    table = make_table(catalog)
    append_file(table, "file:///x/y.avro", file_format="avro", rows=10, size=100)
    message = refused(ReadError, "/x/y.avro", config=catalog, name="db.t")
    assert "Parquet and ORC" in message
    assert "rewrite" in message


def test_encrypted_files(catalog: WritingCatalog) -> None:
    table = make_table(catalog)
    (file,) = parquet_files(table, numbers(500, 5))
    described = describe_file(
        path=file.file_path,
        file_format="parquet",
        rows=5,
        size=file.file_size_in_bytes,
        key_metadata=b"which key",
    )
    commit_files(table, added=[described])
    message = refused(ReadError, str(file.file_path), "encrypted", config=catalog, name="db.t")
    assert "which key" not in message


def test_encrypted_delete_files(catalog: WritingCatalog) -> None:
    table = make_table(catalog)
    path = data_files(table)[0].file_path
    (written,) = append_position_deletes(table, {path: [1]})
    described = describe_file(
        path=written,
        file_format="parquet",
        rows=1,
        size=local(written).stat().st_size,
        content=DataFileContent.POSITION_DELETES,
        key_metadata=b"which key",
    )
    commit_files(table, added=[described], removed=lambda file: file.file_path == written)
    refused(ReadError, written, "encrypted", config=catalog, name="db.t")


def test_files_without_ids_and_without_names(catalog: WritingCatalog) -> None:
    table = make_table(catalog)
    path = local(table.location()) / "data" / "plain.parquet"
    pq.write_table(numbers(500, 5), path)
    append_file(table, f"file://{path}", file_format="parquet", rows=5, size=path.stat().st_size)
    refused(ReadError, str(path), "schema.name-mapping.default", config=catalog, name="db.t")


# --- pyiceberg itself


def test_without_pyiceberg() -> None:
    script = """
import sys
from importlib.abc import MetaPathFinder

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyiceberg":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import headrace
for make in (headrace.IcebergDataset, headrace.IcebergDataset.create_dataloader):
    try:
        make("a.b.c", catalog_config={"type": "sql"})
    except headrace.errors.MissingExtraError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr
    line = 'pyiceberg is not installed; run: pip install "headrace[iceberg]"\n'
    assert done.stdout == line * 2
    assert issubclass(MissingExtraError, ImportError)


def test_what_pyiceberg_lacks_for_a_catalog_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of Hive is an extra of pyiceberg's."""
    monkeypatch.setitem(sys.modules, "hive_metastore", None)
    monkeypatch.delitem(sys.modules, "pyiceberg.catalog.hive", raising=False)
    refused(OptionError, "hive", config={"type": "hive", "uri": "thrift://127.0.0.1:1"})


def test_messages_are_short(catalog: WritingCatalog) -> None:
    """A table of many columns is not printed whole."""
    schema = pa.schema([(f"column_{number}", pa.int64()) for number in range(300)])
    table = catalog.create_table("db.wide", schema)
    with table.transaction() as changing:
        changing.set_properties({"canary": json.dumps(["x" * 100] * 100)})
    assert (
        len(refused(NothingFoundError, "77", config=catalog, name="db.wide", snapshot_id=77)) < 400
    )


def test_the_folder_of_a_table_is_no_plain_files(catalog: WritingCatalog) -> None:
    table = make_table(catalog, files=2, rows=10)
    table.delete("id < 5")
    folder = table.location().removeprefix("file://")
    for place in (folder, f"{folder}/data", f"{folder}/data/*.parquet"):
        with pytest.raises(OptionError, match=r"is a table of Iceberg.*IcebergDataset"):
            StructuredDataset(place)
        assert StructuredDataset(place, "parquet", as_files=True).num_rows > 15
