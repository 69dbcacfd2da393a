"""Catalogs, stores and credentials; and errors that say what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from paimon_rest import TOKEN, RestServer
from paimon_tables import (
    Warehouse,
    arrow_rows,
    delete,
    files,
    in_order,
    numbered,
    s3_options,
    splits,
    write,
)
from pypaimon.schema.schema_change import SchemaChange
from servers.s3 import S3Server

from headrace import (
    AccessDeniedError,
    FileChangedError,
    NothingFoundError,
    OptionError,
    PaimonDataset,
    ReadError,
    SchemaError,
)
from headrace.sources.paimon.native import ForeignRows
from headrace.storage import Redaction


@pytest.fixture
def serve() -> Iterator[Callable[..., RestServer]]:
    servers: list[RestServer] = []

    def start(warehouse: Warehouse, **options: Any) -> RestServer:
        servers.append(RestServer(warehouse, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def ids(catalog_options: dict[str, str], table: str = "db.numbers", **options: Any) -> list[int]:
    settings = {"num_workers": 0, "output_format": "arrow", **options}
    loader, _ = PaimonDataset.create_dataloader(table, catalog_options=catalog_options, **settings)
    return sorted(row for batch in loader for row in batch["id"].to_pylist())


@pytest.mark.parametrize(("num_workers", "file_format"), [(0, "parquet"), (2, "row")])
def test_tables_in_a_bucket(s3_warehouse: Warehouse, num_workers: int, file_format: str) -> None:
    table = s3_warehouse.make(
        "numbers",
        numbered(0, 0).schema,
        **{"deletion-vectors.enabled": "true", "file.format": file_format},
    )
    for start in (0, 100):
        write(table, numbered(start, 100))
    delete(table, {files(table)[0]: [5]})
    loader, dataset = s3_warehouse.load(
        "numbers",
        num_workers=num_workers,
        chunk_size=30,
        shuffle=True,
        multiprocessing_context="spawn" if num_workers else None,
    )
    rows = [row for batch in loader for row in batch.to_pylist()]
    assert in_order(rows) == in_order(arrow_rows(table))
    assert dataset.num_rows == 199
    assert dataset.files[0].path.startswith("s3://")


def test_keyed_tables_in_a_bucket(s3_warehouse: Warehouse) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), ("v", pa.string())])
    table = s3_warehouse.make("numbers", schema, primary_keys=["id"], bucket="2")
    for text in "ab":
        write(table, pa.table({"id": range(50), "v": [text] * 50}, schema=schema))
    assert in_order(s3_warehouse.read("numbers")) == in_order(arrow_rows(table))


def test_a_rest_catalog_is_asked_once_and_never_by_readers(
    warehouse: Warehouse, serve: Callable[..., RestServer]
) -> None:
    table = warehouse.make("numbers", numbered(0, 0).schema, **{"file.format": "row"})
    write(table, numbered(0, 100))
    server = serve(warehouse)
    loader, _ = PaimonDataset.create_dataloader(
        "db.numbers",
        catalog_options=server.options,
        num_workers=2,
        multiprocessing_context="spawn",
        chunk_size=30,
    )
    asked = list(server.requests)
    assert len(asked) <= 4
    assert sum(len(batch["id"]) for batch in loader) == 100
    assert server.requests == asked


def test_credentials_that_a_catalog_lends_reach_readers(
    s3_warehouse: Warehouse, s3_server: S3Server, serve: Callable[..., RestServer]
) -> None:
    write(s3_warehouse.make("numbers", numbered(0, 0).schema), numbered(0, 100))
    server = serve(s3_warehouse, lent=s3_options(s3_server))
    assert ids(server.options) == list(range(100))
    asked = [path.rpartition("/")[2] for path in server.requests]
    assert asked.count("token") == 1
    for name in ("ended", "numbers"):
        with pytest.raises((NothingFoundError, OptionError)):
            ids(server.options, f"db.{name}", snapshot_id=77)


def test_wrong_tokens_and_missing_servers(
    warehouse: Warehouse, serve: Callable[..., RestServer]
) -> None:
    warehouse.make("numbers", numbered(0, 0).schema)
    server = serve(warehouse)
    with pytest.raises(AccessDeniedError, match="credentials in catalog_options") as caught:
        ids({**server.options, "token": "wr0ng-t0ken"})
    assert_nothing_told(caught.value, "wr0ng-t0ken")
    with pytest.raises(NothingFoundError, match=r"db\.nothing"):
        ids(server.options, "db.nothing")
    with pytest.raises(ReadError, match="cannot be reached") as caught_too:
        ids({**server.options, "uri": "http://127.0.0.1:1"})
    assert_nothing_told(caught_too.value, TOKEN)


def assert_nothing_told(error: BaseException, secret: str) -> None:
    """Not in the text, nor in what it came from."""
    assert secret not in f"{error} {error!r}"
    assert error.__context__ is None
    assert error.__cause__ is None


@pytest.mark.parametrize(
    ("table", "options", "error", "message"),
    [
        ("db.nothing", {}, NothingFoundError, "does not exist"),
        ("nothing.numbers", {}, NothingFoundError, "does not exist"),
        ("numbers", {}, OptionError, "such as 'database.table'"),
        (7, {}, OptionError, "such as 'database.table'"),
        ("db.numbers$snapshots", {}, OptionError, "only tables with data files"),
        ("db.numbers", {"metastore": "hive3"}, OptionError, "hive3"),
        ("db.numbers", {"warehouse": None}, OptionError, "warehouse"),
    ],
)
def test_tables_that_are_not_there(
    warehouse: Warehouse, table: Any, options: Any, error: type[Exception], message: str
) -> None:
    warehouse.make("numbers", numbered(0, 0).schema)
    settings = {k: v for k, v in {**warehouse.options, **options}.items() if v is not None}
    with pytest.raises(error, match=message):
        ids(settings, table)


def test_catalog_options_are_a_mapping(warehouse: Warehouse) -> None:
    with pytest.raises(OptionError, match="mapping of options"):
        ids("warehouse")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("scan.fallback-branch", "main"),
        ("chain-table.enabled", "true"),
        ("query-auth.enabled", "true"),
        ("record-level.expire-time", "1 d"),
    ],
)
def test_tables_whose_files_hold_other_rows_are_refused(
    warehouse: Warehouse, serve: Callable[..., RestServer], option: str, value: str
) -> None:
    warehouse.make("numbers", numbered(0, 0).schema)
    server = serve(warehouse)
    server.table_options[option] = value
    with pytest.raises(OptionError, match=option):
        ids(server.options)


def test_chunk_size_and_split_rows_are_one_option(warehouse: Warehouse) -> None:
    warehouse.make("numbers", numbered(0, 0).schema)
    with pytest.raises(OptionError, match="another name"):
        warehouse.load("numbers", chunk_size=10, split_rows=10)
    with pytest.raises(OptionError, match="chunk_size must be an int of at least 1"):
        warehouse.load("numbers", chunk_size=0)


def test_a_missing_data_file_is_named(warehouse: Warehouse) -> None:
    table = warehouse.make("numbers", numbered(0, 0).schema)
    write(table, numbered(0, 10))
    loader, dataset = warehouse.load("numbers")
    Path(dataset.files[0].path).unlink()
    with pytest.raises(FileChangedError, match=files(table)[0]):
        list(loader)


@pytest.mark.parametrize("file_format", ["row", "avro"])
def test_a_missing_file_that_pypaimon_reads_is_named(
    warehouse: Warehouse, file_format: str
) -> None:
    table = warehouse.make("numbers", numbered(0, 0).schema, **{"file.format": file_format})
    write(table, numbered(0, 10))
    loader, dataset = warehouse.load("numbers")
    Path(dataset.files[0].path).unlink()
    with pytest.raises(ReadError, match=files(table)[0]):
        list(loader)


def test_what_pypaimon_says_of_a_file_tells_no_secret() -> None:
    def failing() -> Iterator[pa.Table]:
        raise RuntimeError("the key s3cret-key was refused")
        yield

    rows = ForeignRows(None, Redaction({"s3.secret-key": "s3cret-key"}))
    with pytest.raises(ReadError, match=r"data-1, rows 0-10: .* was refused") as caught:
        rows._next(failing(), "data-1, rows 0-10")
    assert_nothing_told(caught.value, "s3cret-key")
    assert "s3cret-key" not in repr(rows)


@pytest.mark.parametrize(
    "error",
    [PermissionError(13, "denied"), OSError("AWS Error ACCESS_DENIED during HeadObject")],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_denied_files_that_pypaimon_reads_are_told_from_broken_ones(
    error: OSError, wrapped: bool
) -> None:
    def failing() -> Iterator[pa.Table]:
        if wrapped:
            raise RuntimeError("no rows") from error
        raise error
        yield

    with pytest.raises(AccessDeniedError, match="data-1"):
        ForeignRows(None)._next(failing(), "data-1")


def test_files_in_other_places_are_read(warehouse: Warehouse, tmp_path: Path) -> None:
    options = {
        "data-file.external-paths": f"file://{tmp_path}/elsewhere",
        "data-file.external-paths.strategy": "round-robin",
    }
    table = warehouse.make("numbers", numbered(0, 0).schema, **options)
    write(table, numbered(0, 100))
    _, dataset = warehouse.load("numbers")
    assert dataset.files[0].path.startswith(f"{tmp_path}/elsewhere")
    assert in_order(warehouse.read("numbers", chunk_size=30)) == in_order(arrow_rows(table))


def test_vectors_that_name_rows_past_the_end_are_refused(warehouse: Warehouse) -> None:
    table = warehouse.make("numbers", numbered(0, 0).schema)
    write(table, numbered(0, 10))
    delete(table, {files(table)[0]: [3, 10]})
    with pytest.raises(ReadError, match="names row 10"):
        warehouse.read("numbers")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda body: body[:12] + bytes([body[12] ^ 1]) + body[13:], "checksum"),
        (lambda body: body[: len(body) // 2], "bytes"),
    ],
)
def test_damaged_vectors_are_refused(
    warehouse: Warehouse, damage: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    table = warehouse.make("numbers", numbered(0, 0).schema, **{"deletion-vectors.enabled": "true"})
    write(table, numbered(0, 10))
    delete(table, {files(table)[0]: [3]})
    loader, _ = warehouse.load("numbers")
    [vector] = [one for split in splits(table) for one in split.data_deletion_files]
    stored = Path(vector.dv_index_path)
    stored.write_bytes(damage(stored.read_bytes()))
    with pytest.raises(ReadError, match=message):
        list(loader)


def test_types_that_are_not_read_can_be_left_out(warehouse: Warehouse) -> None:
    table = warehouse.make("numbers", numbered(0, 0).schema)
    write(table, numbered(0, 10))
    root = Path(table.table_path)
    text = (root / "schema" / "schema-0").read_text()
    (root / "schema" / "schema-0").write_text(
        text.replace('"type": "STRING"', '"type": {"type": "MULTISET", "element": "INT"}')
    )
    with pytest.raises(SchemaError, match=r"'name'.*MULTISET.*columns="):
        warehouse.load("numbers")
    assert len(warehouse.read("numbers", columns=["id"])) == 10


def test_the_package_needs_pypaimon_only_for_its_tables() -> None:
    program = (
        "import sys; sys.modules['pypaimon'] = None\n"
        "from headrace import MissingExtraError, PaimonDataset\n"
        "try: PaimonDataset('db.t', {})\n"
        "except MissingExtraError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ)
    )
    assert 'pip install "headrace[paimon]"' in done.stdout, done.stderr


def test_options_of_tables_change_what_is_read_next(warehouse: Warehouse) -> None:
    table = warehouse.make("numbers", numbered(0, 0).schema)
    write(table, numbered(0, 10))
    _, dataset = warehouse.load("numbers")
    warehouse.alter("numbers", SchemaChange.set_option("scan.fallback-branch", "side"))
    with pytest.raises(OptionError, match=r"scan\.fallback-branch"):
        dataset.refresh()
