"""Tables of every kind of catalog, on local files and on S3, read here and in workers."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from numbered_tables import SCHEMA, all_ids, ids_in, loader_of, make_table, numbers
from pyarrow.fs import LocalFileSystem
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from servers.rest_catalog import RestCatalogServer
from servers.s3 import S3Server
from writers.catalogs import WritingCatalog, local_catalog, s3_properties
from writers.data_files import append_rows
from writers.delete_files import append_position_deletes
from writers.second_readers import DuckDB

from headrace import IcebergDataset
from headrace.errors import NothingFoundError, OptionError

ALL = list(range(120))
Serve = Callable[..., RestCatalogServer]


@pytest.fixture(params=["sql", "sql on s3", "in-memory", "glue", "rest", "rest on s3", "dynamodb"])
def kind(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The name of a table of three files, and the properties of its catalog."""
    fixtures = {
        "sql": "catalog",
        "rest": "catalog",
        "sql on s3": "s3_catalog",
        "rest on s3": "s3_catalog",
        "in-memory": "memory_catalog",
        "glue": "glue_catalog",
    }
    if request.param == "dynamodb":
        server = request.getfixturevalue("s3_server")
        bucket = server.make_bucket(f"dynamo-{time.monotonic_ns()}")
        properties = {
            "type": "dynamodb",
            "table-name": bucket,
            "warehouse": f"s3://{bucket}/warehouse",
            "dynamodb.region": server.region,
            "dynamodb.access-key-id": server.key,
            "dynamodb.secret-access-key": server.secret,
            **s3_properties(server),
        }
        request.getfixturevalue("monkeypatch").setenv("AWS_ENDPOINT_URL_DYNAMODB", server.url)
        _dynamo_table(server, properties, request.getfixturevalue("tmp_path"))
        return "tests.db.t", properties
    made = request.getfixturevalue(fixtures[request.param])
    namespace = getattr(made, "namespace", "db")
    make_table(made, f"{namespace}.t")
    if request.param.startswith("rest"):
        server = request.getfixturevalue("serve_catalog")(made)
        on_s3 = {k: v for k, v in made.properties.items() if k.startswith("s3.")}
        return f"tests.{namespace}.t", {**server.properties, **on_s3}
    return f"tests.{namespace}.t", made.properties_for_users


def _dynamo_table(server: S3Server, properties: dict[str, Any], folder: Path) -> None:
    """pyiceberg's DynamoDB takes no commits: an entry is led to a table written elsewhere."""
    with local_catalog(
        folder, warehouse=properties["warehouse"], **s3_properties(server)
    ) as writing:
        writing.create_namespace("db")
        table = make_table(writing)
        dynamo = load_catalog("tests", **properties)
        dynamo.create_namespace("db")
        dynamo.create_table("db.t", SCHEMA)
        dynamo.dynamodb.update_item(
            TableName=properties["table-name"],
            Key={"identifier": {"S": "db.t"}, "namespace": {"S": "db"}},
            UpdateExpression="SET #location = :location",
            ExpressionAttributeNames={"#location": "p.metadata_location"},
            ExpressionAttributeValues={":location": {"S": table.metadata_location}},
        )


def test_every_row_once(kind: tuple[str, dict[str, Any]]) -> None:
    name, config = kind
    loader, dataset = loader_of(name, config, num_workers=2)
    assert sorted(ids_in(loader)) == ALL
    assert dataset.num_rows == 120
    assert len(loader) == 12
    assert dataset.snapshot_id is not None


def test_a_catalog_that_is_given_as_an_object(memory_catalog: WritingCatalog) -> None:
    make_table(memory_catalog)
    assert all_ids("db.t", memory_catalog) == ALL
    assert all_ids("tests.db.t", memory_catalog) == ALL
    assert all_ids("db.t", memory_catalog, num_workers=2) == ALL


def test_a_catalog_of_the_in_memory_type_that_nobody_else_has(tmp_path: Path) -> None:
    """Its properties would make another one, which is empty: only the object will do."""
    with load_catalog("mine", type="in-memory", warehouse=f"file://{tmp_path}") as mine:
        mine.create_namespace("db")
        mine.create_table("db.t", SCHEMA).append(numbers(0, 7))
        assert all_ids("mine.db.t", mine) == list(range(7))
        with pytest.raises(NothingFoundError, match=r"'mine\.db\.t'"):
            all_ids("mine.db.t", {"type": "in-memory", "warehouse": f"file://{tmp_path}"})


def test_jdbc_is_another_name_for_sql(catalog: WritingCatalog) -> None:
    make_table(catalog)
    config = {**catalog.properties_for_users, "type": "jdbc"}
    assert all_ids("tests.db.t", config) == ALL
    assert all_ids("tests.db.t", {**config, "uri": f"jdbc:{config['uri']}"}) == ALL
    assert config["type"] == "jdbc"


NAMES = {
    "catalog and three namespaces": "tests.a.b.c.t",
    "three namespaces alone": "a.b.c.t",
    "name of the catalog as an option": "a.b.c.t",
}


@pytest.mark.parametrize("how", NAMES)
@pytest.mark.parametrize("over", ["sql", "rest", "object"])
def test_namespaces_inside_of_namespaces(
    catalog: WritingCatalog, serve_catalog: Serve, how: str, over: str
) -> None:
    for namespace in ("a", "a.b", "a.b.c"):
        catalog.create_namespace(namespace)
    make_table(catalog, "a.b.c.t")
    config: Any = {
        "sql": catalog.properties_for_users,
        "rest": serve_catalog(catalog).properties,
        "object": catalog,
    }[over]
    # A SQL catalog keeps tables under the name of the catalog, a REST catalog does not have one.
    if how == "name of the catalog as an option" and over != "object":
        config = {**config, "name": "tests"}
    if how == "three namespaces alone" and over == "sql":
        with pytest.raises(NothingFoundError, match=r"catalog 'a' .*has no a\.b\.c\.t or b\.c\.t"):
            all_ids(NAMES[how], config)
        return
    assert all_ids(NAMES[how], config) == ALL


def test_names_of_two_parts(catalog: WritingCatalog, serve_catalog: Serve) -> None:
    make_table(catalog)
    assert all_ids("db.t", {**catalog.properties_for_users, "name": "tests"}) == ALL
    assert all_ids("db.t", serve_catalog(catalog).properties) == ALL


@pytest.mark.parametrize("name", ["t", "", ".t", "a..t", "a.b.", None, 7])
def test_what_is_no_name(catalog: WritingCatalog, name: Any) -> None:
    with pytest.raises(OptionError, match=r"'catalog\.database\.table'"):
        loader_of(name, catalog.properties_for_users)


def test_a_catalog_of_the_configuration_file(
    catalog: WritingCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without catalog_config it is pyiceberg that knows the catalog by its name."""
    make_table(catalog)
    monkeypatch.setenv("PYICEBERG_CATALOG__FROMENV__TYPE", "sql")
    for name, value in catalog.properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__FROMENV__{name.upper()}", value)
    from pyiceberg import catalog as module
    from pyiceberg.utils.config import Config

    monkeypatch.setattr(module, "_ENV_CONFIG", Config())
    with SqlCatalog("fromenv", **catalog.properties) as other:
        other.create_namespace("db")
        other.register_table("db.t", catalog.load_table("db.t").metadata_location)
    assert all_ids("fromenv.db.t", None) == ALL


@pytest.mark.parametrize(("deletes", "num_workers"), [(False, 0), (True, 2)])
def test_an_epoch_asks_nothing_of_the_catalog(
    catalog: WritingCatalog, serve_catalog: Serve, num_workers: int, deletes: bool
) -> None:
    table = make_table(catalog)
    left = ALL
    if deletes:
        path = append_rows(table, numbers(120, 40))[0]
        append_position_deletes(table, {path: range(40)})
    server = serve_catalog(catalog)
    loader, _ = loader_of(
        "db.t",
        server.properties,
        num_workers=num_workers,
        multiprocessing_context="forkserver" if num_workers else None,
    )
    asked = len(server.log)
    assert asked
    assert sorted(ids_in(loader)) == left
    assert len(server.log) == asked
    server.stop()
    assert sorted(ids_in(loader)) == left
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert sorted(ids_in(loader)) == left


def test_two_stores_of_one_catalog(catalog: WritingCatalog, s3_server: S3Server) -> None:
    """Tables of a catalog may lie elsewhere: the table's own location counts."""
    bucket = s3_server.make_bucket(f"elsewhere-{time.monotonic_ns()}")
    properties = {**catalog.properties, **s3_properties(s3_server)}
    with SqlCatalog("tests", **properties) as both:
        table = both.create_table("db.far", SCHEMA, location=f"s3://{bucket}/far")
        table.append(numbers(0, 5))
        both.create_table("db.near", SCHEMA).append(numbers(0, 6))
    config = {"type": "sql", **properties}
    assert all_ids("tests.db.far", config) == list(range(5))
    assert all_ids("tests.db.near", config) == list(range(6))


def test_copies_of_a_dataset_stay_at_their_snapshot(catalog: WritingCatalog) -> None:
    make_table(catalog)
    dataset = IcebergDataset("db.t", catalog, batch_size=50, output_format="numpy")
    copied = pickle.loads(pickle.dumps(dataset))
    assert sorted(ids_in(copied)) == ALL
    assert copied.snapshot_id == dataset.snapshot_id
    with pytest.raises(OptionError, match="stays at its snapshot"):
        copied.refresh()


def test_the_table_of_another_engine_through_the_rest_catalog(
    catalog: WritingCatalog, serve_catalog: Serve
) -> None:
    make_table(catalog)
    server = serve_catalog(catalog)
    duck = DuckDB()
    try:
        duck.attach(server.url)
        duck.execute("INSERT INTO rest.db.t SELECT 1000 + range, 0.5 FROM range(10)")
        duck.execute("DELETE FROM rest.db.t WHERE id % 2 = 0")
    finally:
        duck.close()
    expected = [*range(1, 120, 2), *range(1001, 1010, 2)]
    assert all_ids("db.t", server.properties) == expected
    assert all_ids("db.t", server.properties, num_workers=2) == expected


@pytest.mark.parametrize(
    "files", [LocalFileSystem(), fsspec.filesystem("file")], ids=["pyarrow", "fsspec"]
)
def test_a_filesystem_that_is_given_reads_the_files(catalog: WritingCatalog, files: Any) -> None:
    table = make_table(catalog)
    append_position_deletes(table, {table.inspect.files()["file_path"][0].as_py(): range(40)})
    assert len(all_ids("db.t", catalog, filesystem=files)) == 80


def test_a_filesystem_that_takes_no_urls_is_refused(s3_catalog: WritingCatalog) -> None:
    make_table(s3_catalog)
    with pytest.raises(OptionError, match="give a filesystem of fsspec, or storage_options="):
        loader_of("db.t", s3_catalog, filesystem=LocalFileSystem())


def test_a_cache_on_disk(s3_catalog: WritingCatalog, tmp_path: Path) -> None:
    make_table(s3_catalog)
    for _ in range(2):
        loader, _ = loader_of("db.t", s3_catalog, cache_dir=tmp_path / "cache")
        assert sorted(ids_in(loader)) == ALL
    assert any((tmp_path / "cache").rglob("*"))
