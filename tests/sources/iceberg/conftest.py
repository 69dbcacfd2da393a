"""Catalogs, servers and second readers for the tests of Iceberg tables.

A catalog fixture has an empty namespace "db"; its `properties_for_users` is the `catalog_config`
of a dataset that is to read its tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.manifest import clear_manifest_cache
from servers.rest_catalog import RestCatalogServer
from servers.s3 import S3Server
from writers.catalogs import WritingCatalog, local_catalog, s3_properties
from writers.second_readers import DuckDB

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def no_manifests_are_kept() -> Iterator[None]:
    """pyiceberg keeps what it has read for as long as a process lives."""
    yield
    clear_manifest_cache()


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[WritingCatalog]:
    """SQL on sqlite, tables on local files. Writes tables of version 3 too."""
    with local_catalog(tmp_path) as made:
        made.create_namespace("db")
        yield made


@pytest.fixture
def s3_catalog(tmp_path: Path, s3_server: S3Server) -> Iterator[WritingCatalog]:
    """SQL on sqlite, tables in a bucket of their own."""
    bucket = s3_server.make_bucket(f"iceberg-{next(NUMBERS)}")
    with local_catalog(
        tmp_path, warehouse=f"s3://{bucket}/warehouse", **s3_properties(s3_server)
    ) as made:
        made.create_namespace("db")
        yield made


@pytest.fixture
def memory_catalog(tmp_path: Path) -> Iterator[WritingCatalog]:
    """pyiceberg's "in-memory"; catalogs with these properties share it while this one is open."""
    shared = f"sqlite:///file:/iceberg{next(NUMBERS)}?vfs=memdb&uri=true"
    with local_catalog(tmp_path, uri=shared, type="in-memory") as made:
        made.create_namespace("db")
        yield made


@pytest.fixture
def glue_catalog(s3_server: S3Server) -> Catalog:
    """Glue as moto has it, tables in a bucket and a namespace (`.namespace`) of their own."""
    number = next(NUMBERS)
    bucket = s3_server.make_bucket(f"glue-{number}")
    properties = {
        "type": "glue",
        "warehouse": f"s3://{bucket}/warehouse",
        "glue.endpoint": s3_server.url,
        "glue.region": s3_server.region,
        "glue.access-key-id": s3_server.key,
        "glue.secret-access-key": s3_server.secret,
        **s3_properties(s3_server),
    }
    made = load_catalog("tests", **properties)
    made.properties_for_users = properties
    namespace = f"db{number}"
    made.create_namespace(namespace)
    made.namespace = namespace
    return made


@pytest.fixture
def serve_catalog() -> Iterator[Callable[..., RestCatalogServer]]:
    """`serve_catalog(catalog, token=…, vended=…)`: a REST catalog over it, stopped at the end."""
    servers: list[RestCatalogServer] = []

    def start(catalog: Catalog, **options: object) -> RestCatalogServer:
        servers.append(RestCatalogServer(catalog, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def duck() -> Iterator[DuckDB]:
    """A DuckDB for local tables; `duck.rows(table)`."""
    reader = DuckDB()
    yield reader
    reader.close()
