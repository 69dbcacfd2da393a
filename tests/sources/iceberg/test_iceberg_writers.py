"""The writers of the tests are themselves read by others, before anything rests on them."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError, UnauthorizedError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from servers.rest_catalog import RestCatalogServer
from servers.s3 import S3Server
from writers.catalogs import WritingCatalog, s3_properties
from writers.committing import data_files, live_entries
from writers.data_files import (
    append_orc_data,
    append_parquet_without_ids,
    append_rows,
    overwrite_rows,
)
from writers.delete_files import append_equality_deletes, append_position_deletes
from writers.deletion_vectors import append_deletion_vectors, is_vector
from writers.oracle import rows_by_oracle
from writers.second_readers import (
    DuckDB,
    duckdb_can_read,
    multiset,
    rows_by_duckdb,
    rows_by_pyiceberg,
)

ROWS = pa.table({"x": pa.array(range(10), pa.int64()), "s": [None, *"abcdefghi"]})
Serve = Callable[..., RestCatalogServer]


def make_table(catalog: Catalog, rows: pa.Table = ROWS, *, version: int = 2, **options: object):
    properties = {"format-version": str(version), **options.pop("properties", {})}
    return catalog.create_table("db.t", rows.schema, properties=properties, **options)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_rows_are_appended_and_overwritten_in_all_versions(
    catalog: WritingCatalog, duck: DuckDB, version: int
) -> None:
    table = make_table(catalog, version=version)
    (first,) = append_rows(table, ROWS)
    append_rows(table, ROWS.slice(0, 3))
    expected = multiset(pa.concat_tables([ROWS, ROWS.slice(0, 3)]))
    assert multiset(duck.rows(table)) == multiset(rows_by_pyiceberg(table)) == expected
    overwrite_rows(table, ROWS.slice(5), replaced={first})
    expected = multiset(pa.concat_tables([ROWS.slice(5), ROWS.slice(0, 3)]))
    assert multiset(duck.rows(table)) == multiset(rows_by_pyiceberg(table)) == expected


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("one_file", [True, False])
def test_position_deletes_are_read_by_both(
    catalog: WritingCatalog, duck: DuckDB, version: int, one_file: bool
) -> None:
    table = make_table(catalog, version=version)
    (one,), (two,) = append_rows(table, ROWS), append_rows(table, ROWS)
    written = append_position_deletes(
        table, {one: [0, 4], two: [9]}, one_file=one_file, referenced=True
    )
    assert len(written) == (1 if one_file else 2)
    # Rows that come later are not touched.
    append_rows(table, ROWS)
    expected = multiset(pa.concat_tables([ROWS.take([1, 2, 3, *range(5, 10)]), ROWS.slice(0, 9)]))
    expected += multiset(ROWS)
    assert multiset(duck.rows(table)) == multiset(rows_by_pyiceberg(table)) == expected


def test_position_deletes_in_orc_are_read_by_pyiceberg(catalog: WritingCatalog) -> None:
    table = make_table(catalog)
    (path,) = append_rows(table, ROWS)
    append_position_deletes(table, {path: [0, 4]}, file_format="orc")
    expected = multiset(ROWS.take([1, 2, 3, *range(5, 10)]))
    assert multiset(rows_by_pyiceberg(table)) == expected


def test_version_1_has_no_deletes(catalog: WritingCatalog) -> None:
    table = make_table(catalog, version=1)
    (path,) = append_rows(table, ROWS)
    with pytest.raises(ValueError, match="version 1"):
        append_position_deletes(table, {path: [1]})


@pytest.mark.parametrize("version", [2, 3])
def test_equality_deletes_are_read_by_duckdb(
    catalog: WritingCatalog, duck: DuckDB, version: int
) -> None:
    table = make_table(catalog, version=version)
    append_rows(table, ROWS)
    append_equality_deletes(table, ["s"], [(None,), ("c",), ("never",)])
    append_rows(table, ROWS.slice(0, 1))
    append_equality_deletes(table, ["s", "x"], [("i", 9), ("h", 9)])
    expected = multiset(ROWS.take([1, 2, 4, 5, 6, 7, 8])) + multiset(ROWS.slice(0, 1))
    assert multiset(duck.rows(table)) == expected


def test_deletes_of_a_partition_stay_within_it(catalog: WritingCatalog) -> None:
    table = make_table(catalog, pa.table({"p": [1, 1, 2, 2], "x": [1, 2, 1, 2]}))
    with table.update_spec() as changing:
        changing.add_identity("p")
    paths = append_rows(table, pa.table({"p": [1, 1, 2, 2], "x": [1, 2, 1, 2]}))
    assert len(paths) == 2
    append_equality_deletes(table, ["p", "x"], [(1, 1), (2, 1)], partition=Record(1))
    assert multiset(rows_by_oracle(table)) == {(1, 2): 1, (2, 1): 1, (2, 2): 1}
    last = {file.partition[0]: file.file_path for file in data_files(table)}[2]
    append_position_deletes(table, {last: [1]})
    assert multiset(rows_by_oracle(table)) == {(1, 2): 1, (2, 1): 1}
    # One for the whole table, in the spec without fields that it was made with.
    append_equality_deletes(table, ["x"], [(2,)])
    assert multiset(rows_by_oracle(table)) == {(2, 1): 1}


@pytest.mark.parametrize("one_file", [True, False])
def test_deletion_vectors_are_read_by_both(
    catalog: WritingCatalog, duck: DuckDB, one_file: bool
) -> None:
    table = make_table(catalog, version=3)
    (one,), (two,) = append_rows(table, ROWS), append_rows(table, ROWS)
    written = append_deletion_vectors(table, {one: [0, 4], two: [9]}, one_file=one_file)
    assert len(written) == (1 if one_file else 2)
    # One that is there already is replaced.
    append_deletion_vectors(table, {one: [5]})
    assert sum(is_vector(entry.data_file) for entry in live_entries(table)) == 2
    expected = multiset(ROWS.take([1, 2, 3, *range(6, 10)])) + multiset(ROWS.slice(0, 9))
    assert multiset(duck.rows(table)) == expected
    if not one_file:
        assert multiset(rows_by_pyiceberg(table)) == expected


def test_vectors_of_many_rows_have_containers_of_every_kind(
    catalog: WritingCatalog, duck: DuckDB
) -> None:
    rows = pa.table({"x": pa.array(range(200_000), pa.int64())})
    table = make_table(catalog, rows, version=3)
    (path,) = append_rows(table, rows)
    runs, sparse = range(10_000, 60_000), range(70_000, 130_000, 977)
    dense = range(131_072, 190_000, 3)
    append_deletion_vectors(table, {path: [*runs, *sparse, *dense]})
    expected = sorted(set(range(200_000)) - {*runs, *sparse, *dense})
    assert sorted(duck.rows(table).column("x").to_pylist()) == expected


@pytest.mark.parametrize("version", [1, 2, 3])
def test_orc_and_files_without_ids_are_read_by_pyiceberg(
    catalog: WritingCatalog, version: int
) -> None:
    table = make_table(catalog, version=version)
    append_orc_data(table, ROWS)
    append_parquet_without_ids(table, ROWS.slice(0, 2))
    with table.update_schema() as changing:
        changing.rename_column("s", "renamed")
    read = rows_by_pyiceberg(table)
    assert read.column_names == ["x", "renamed"]
    assert multiset(read) == multiset(ROWS) + multiset(ROWS.slice(0, 2))


def test_nested_fields_have_ids_in_orc(catalog: WritingCatalog) -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int32()))])
    rows = pa.table({"n": pa.array([{"a": 1, "b": [2, 3]}, None], kind)})
    table = make_table(catalog, rows)
    append_orc_data(table, rows)
    with table.update_schema() as changing:
        changing.rename_column("n.a", "c")
        changing.move_first("n.b")
    assert rows_by_pyiceberg(table).to_pylist() == [{"n": {"b": [2, 3], "c": 1}}, {"n": None}]


def test_initial_defaults_are_read_by_duckdb(catalog: WritingCatalog, duck: DuckDB) -> None:
    table = make_table(catalog, version=3)
    append_rows(table, ROWS.slice(0, 1))
    with table.update_schema() as changing:
        changing.add_column("d", IntegerType(), default_value=7)
    append_rows(table, pa.table({"x": [1], "s": ["a"], "d": pa.array([8], pa.int32())}))
    assert multiset(duck.rows(table)) == {(0, None, 7): 1, (1, "a", 8): 1}


@pytest.mark.parametrize("version", [2, 3])
def test_duckdb_deletes_through_the_rest_catalog(
    catalog: WritingCatalog, serve_catalog: Serve, version: int
) -> None:
    server = serve_catalog(catalog)
    table = make_table(catalog, version=version)
    append_rows(table, ROWS)
    duck = DuckDB()
    duck.attach(server.url)
    duck.execute("DELETE FROM rest.db.t WHERE x % 2 = 0")
    table.refresh()
    files = [entry.data_file for entry in live_entries(table)]
    assert sum(is_vector(file) for file in files) == (1 if version == 3 else 0)
    assert len(files) == 2
    assert multiset(rows_by_pyiceberg(table)) == multiset(ROWS.take([1, 3, 5, 7, 9]))
    duck.execute("CREATE TABLE rest.db.u AS SELECT * FROM rest.db.t")
    duck.execute("UPDATE rest.db.u SET s = 'z' WHERE x > 5")
    duck.close()
    made = rows_by_pyiceberg(catalog.load_table("db.u"))
    assert multiset(made) == {(1, "a"): 1, (3, "c"): 1, (5, "e"): 1, (7, "z"): 1, (9, "z"): 1}


def test_pyiceberg_works_through_the_rest_catalog(
    catalog: WritingCatalog, serve_catalog: Serve
) -> None:
    rest = load_catalog("rest", **serve_catalog(catalog).properties)
    rest.create_namespace(("a",))
    rest.create_namespace(("a", "b"))
    assert rest.list_namespaces("a") == [("a", "b")]
    table = rest.create_table("a.b.t", ROWS.schema)
    table.append(ROWS)
    append_rows(table, ROWS)
    with table.update_schema() as changing:
        changing.rename_column("s", "renamed")
    assert rest.list_tables("a.b") == [("a", "b", "t")]
    assert multiset(rows_by_pyiceberg(rest.load_table("a.b.t"))) == multiset(ROWS) + multiset(ROWS)
    rest.drop_table("a.b.t")
    with pytest.raises(NoSuchTableError):
        rest.load_table("a.b.t")


def test_the_rest_catalog_wants_its_token(catalog: WritingCatalog, serve_catalog: Serve) -> None:
    server = serve_catalog(catalog, token="good", credential="me:mine")
    for wrong in ({}, {"token": "bad"}):
        with pytest.raises((UnauthorizedError, ForbiddenError)):
            load_catalog("rest", **server.properties, **wrong)
    tokens = f"{server.url}/v1/oauth/tokens"
    for right in ({"token": "good"}, {"credential": "me:mine", "oauth2-server-uri": tokens}):
        assert load_catalog("rest", **server.properties, **right).list_tables("db") == []


@pytest.mark.parametrize("apart", [False, True])
def test_credentials_are_vended_with_the_table(
    s3_catalog: WritingCatalog, s3_server: S3Server, serve_catalog: Serve, apart: bool
) -> None:
    table = make_table(s3_catalog)
    append_rows(table, ROWS)
    vended = s3_properties(s3_server)
    server = serve_catalog(s3_catalog, vended=vended, vended_apart=apart)
    rest = load_catalog("rest", **server.properties)
    assert "s3.secret-access-key" not in rest.properties
    assert multiset(rows_by_pyiceberg(rest.load_table("db.t"))) == multiset(ROWS)


def test_tables_on_s3_are_read_by_duckdb(s3_catalog: WritingCatalog, s3_server: S3Server) -> None:
    table = make_table(s3_catalog, version=3)
    (path,) = append_rows(table, ROWS)
    append_deletion_vectors(table, {path: [0]})
    append_equality_deletes(table, ["s"], [("a",)])
    assert multiset(rows_by_duckdb(table, s3=s3_server)) == multiset(ROWS.slice(2))


def test_glue_and_a_database_in_memory_hold_tables(
    glue_catalog: Catalog, memory_catalog: WritingCatalog
) -> None:
    for catalog, namespace in ((glue_catalog, glue_catalog.namespace), (memory_catalog, "db")):
        table = catalog.create_table(f"{namespace}.t", ROWS.schema)
        (path,) = append_rows(table, ROWS)
        append_position_deletes(table, {path: [0]})
        again = load_catalog("tests", **catalog.properties_for_users)
        assert multiset(rows_by_pyiceberg(again.load_table(f"{namespace}.t"))) == multiset(
            ROWS.slice(1)
        )


def test_partitions_that_changed_are_read_by_both(catalog: WritingCatalog, duck: DuckDB) -> None:
    rows = pa.table({"p": ["a", None, "a"], "q": [1, 2, 3]})
    schema = Schema(NestedField(1, "p", StringType()), NestedField(2, "q", LongType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
    table = catalog.create_table("db.t", schema, partition_spec=spec)
    paths = append_rows(table, rows)
    assert len(paths) == 2
    with table.update_spec() as changing:
        changing.remove_field("p")
    append_rows(table, rows)
    assert multiset(rows_by_pyiceberg(table)) == multiset(rows) + multiset(rows)
    append_equality_deletes(table, ["q"], [(3,)])
    expected = multiset(rows.slice(0, 2)) + multiset(rows.slice(0, 2))
    assert multiset(duck.rows(table)) == multiset(rows_by_oracle(table)) == expected


def test_the_oracle_reads_what_others_cannot(catalog: WritingCatalog) -> None:
    rows = pa.table({"q": [1, 2, 3], "n": [{"k": 5}, {"k": 6}, None]})
    table = make_table(catalog, rows)
    append_orc_data(table, rows)
    append_rows(table, rows)
    append_equality_deletes(table, ["n.k"], [(5,)])
    assert multiset(rows_by_oracle(table)) == multiset(rows.slice(1)) + multiset(rows.slice(1))
    append_equality_deletes(table, ["q"], [(2,)], file_format="orc")
    append_rows(table, rows)
    expected = multiset(rows.slice(2)) + multiset(rows.slice(2)) + multiset(rows)
    assert multiset(rows_by_oracle(table)) == expected


def test_the_oracle_agrees_with_others_where_they_can(
    catalog: WritingCatalog, duck: DuckDB
) -> None:
    table = make_table(catalog, version=3)
    (one,), (two,) = append_rows(table, ROWS), append_rows(table, ROWS)
    append_position_deletes(table, {one: [0, 1], two: [3]})
    append_deletion_vectors(table, {two: [3, 5]})
    assert multiset(duck.rows(table)) == multiset(rows_by_oracle(table))
    assert multiset(rows_by_pyiceberg(table)) == multiset(rows_by_oracle(table))
    append_equality_deletes(table, ["x"], [(8,), (0,)])
    with table.update_schema() as changing:
        changing.rename_column("x", "t")
        changing.add_column("d", IntegerType(), default_value=7)
    assert duckdb_can_read(table)
    assert multiset(duck.rows(table)) == multiset(rows_by_oracle(table))
    assert rows_by_oracle(table).num_rows == 7 + 6
    with table.update_schema() as changing:
        changing.delete_column("t")
    assert not duckdb_can_read(table)
    assert rows_by_oracle(table).num_rows == 7 + 6
