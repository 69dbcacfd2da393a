"""What is planned from manifests alone: files and counts; and what footers are for."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from numbered_tables import all_ids, ids_in, loader_of, make_table, numbers
from pyiceberg.expressions import AlwaysTrue, And, EqualTo, GreaterThan, LessThan
from pyiceberg.io.pyarrow import schema_to_pyarrow
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from writers.catalogs import WritingCatalog
from writers.committing import commit_files, data_files, describe_file
from writers.data_files import append_orc_data, append_rows, parquet_files
from writers.delete_files import append_position_deletes

from headrace import IcebergDataset, OptionError

ProxyTo = Callable[..., FaultProxy]


# --- footers


@pytest.mark.parametrize(
    ("groups", "options", "footers"),
    [
        (1, {}, 0),
        (1, {"filters": [("x", ">", 10.0)]}, 0),
        (1, {"split_rows": 15}, 0),
        (4, {}, 0),
        (4, {"columns": ["id"]}, 0),
        (4, {"filters": [("x", ">", 10.0)]}, 1),
        (4, {"split_rows": 15}, 1),
        (4, {"split_rows": 40}, 0),
        (4, {"shuffle": True, "split_rows": 15, "filters": [("x", ">", 10.0)]}, 1),
    ],
    ids=str,
)
def test_footers_are_read_only_where_the_manifest_does_not_suffice(
    s3_catalog: WritingCatalog,
    s3_server: S3Server,
    proxy_to: ProxyTo,
    groups: int,
    options: dict[str, Any],
    footers: int,
) -> None:
    table = make_table(s3_catalog, group_rows=40 // groups)
    names = {file.file_path.rsplit("/", 1)[1] for file in data_files(table)}
    proxy = proxy_to(s3_server.url)
    config = {**s3_catalog.properties_for_users, "s3.endpoint": proxy.url}
    loader, _ = loader_of("tests.db.t", config, **options)
    asked = [one for one in proxy.log if "/data/" in one.path]
    assert all(one.range is not None and one.method == "GET" for one in asked)
    times = Counter(one.path.rsplit("/", 1)[1] for one in asked)
    assert times == dict.fromkeys(names, 1) if footers else not times
    expected = [one for one in range(120) if "filters" not in options or 0.5 * one > 10]
    assert sorted(ids_in(loader)) == expected


def test_files_that_filters_rule_out_are_never_asked_for(
    s3_catalog: WritingCatalog, s3_server: S3Server, proxy_to: ProxyTo
) -> None:
    table = make_table(s3_catalog, group_rows=10)
    wanted = data_files(table)[2].file_path.rsplit("/", 1)[1]
    proxy = proxy_to(s3_server.url)
    config = {**s3_catalog.properties_for_users, "s3.endpoint": proxy.url}
    assert all_ids("tests.db.t", config, filters=pc.field("id") >= 85) == list(range(85, 120))
    asked = {one.path.rsplit("/", 1)[1] for one in proxy.log if "/data/" in one.path}
    assert asked == {wanted}


def test_files_of_which_the_manifest_says_little(catalog: WritingCatalog) -> None:
    """Without split offsets nobody knows how many row groups there are."""
    table = make_table(catalog, files=0, group_rows=10)
    (file,) = parquet_files(table, numbers(0, 40))
    described = describe_file(
        path=file.file_path, file_format="parquet", rows=40, size=file.file_size_in_bytes
    )
    commit_files(table, added=[described])
    for options in ({}, {"split_rows": 10}, {"filters": [("id", "<", 25)]}):
        expected = list(range(25 if "filters" in options else 40))
        assert all_ids("db.t", catalog, **options) == expected


# --- what is told


def told(caplog: pytest.LogCaptureFixture, *args: Any, **options: Any) -> tuple[str, Any]:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="headrace"):
        _, dataset = loader_of(*args, **options)
    ours = [one for one in caplog.records if one.name.startswith("headrace.sources.tables")]
    assert {one.levelno for one in ours} == {logging.INFO}
    return "\n".join(one.getMessage() for one in ours), dataset


def test_counts_of_files_and_what_is_for_rows_only(
    catalog: WritingCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    table = make_table(catalog)
    snapshot = table.metadata.current_snapshot_id
    text, _ = told(caplog, "tests.db.t", catalog)
    assert f"tests.db.t, snapshot {snapshot}: 3 of 3 data files" in text

    even = pc.equal(pc.bit_wise_and(pc.field("id"), 1), 0)
    text, dataset = told(caplog, "tests.db.t", catalog, filters=(pc.field("id") < 50) & even)
    assert "2 of 3 data files" in text
    assert "GreaterThanOrEqual" not in text
    assert "LessThan" in text
    assert "applied to rows only: " in text
    assert "bit_wise_and" in text
    assert len(dataset.files) == 2

    text, _ = told(caplog, "tests.db.t", catalog, filters=[("id", "<", 50)])
    assert "applied to rows only" not in text

    text, _ = told(caplog, "tests.db.t", catalog, scan_filter=LessThan("id", 30))
    assert "1 of 3 data files" in text


# --- scan_filter


def test_a_scan_filter_prunes_files_only_and_in_the_place_of_the_other(
    catalog: WritingCatalog,
) -> None:
    make_table(catalog)
    pruned = loader_of("db.t", catalog, scan_filter=And(GreaterThan("id", 45), LessThan("id", 50)))
    assert sorted(ids_in(pruned[0])) == list(range(40, 80))
    assert pruned[1].num_rows == 40
    loader, dataset = loader_of(
        "db.t", catalog, scan_filter=GreaterThan("id", 45), filters=pc.field("id") < 50
    )
    assert len(dataset.files) == 2
    assert sorted(ids_in(loader)) == list(range(40, 50))
    _, unpruned = loader_of("db.t", catalog, scan_filter=AlwaysTrue(), filters=pc.field("id") < 50)
    assert len(unpruned.files) == 3


def test_states_of_another_scan_filter_are_refused(catalog: WritingCatalog) -> None:
    make_table(catalog)
    loader, _ = loader_of("db.t", catalog, scan_filter=GreaterThan("id", 45))
    other, _ = loader_of("db.t", catalog, scan_filter=GreaterThan("id", 85))
    with pytest.raises(ValueError, match="differ"):
        other.load_state_dict(loader.state_dict())


# --- little or nothing


def nothing_in(name: str, catalog: WritingCatalog, **options: Any) -> IcebergDataset:
    loader, dataset = loader_of(name, catalog, **options)
    assert list(loader) == []
    assert loader.state_dict()["epoch"] == 1
    assert list(loader) == []
    return dataset


def test_nothing_is_left(catalog: WritingCatalog) -> None:
    table = make_table(catalog, files=0)
    assert nothing_in("db.t", catalog).num_rows == 0
    assert nothing_in("db.t", catalog, filters=[("id", "<", 0)]).num_rows in (0, None)
    append_rows(table, numbers(0, 40))
    pruned = nothing_in("db.t", catalog, filters=[("id", "<", 0)])
    assert (len(pruned.files), pruned.schema.names) == (0, ["id", "x"])
    nothing_in("db.t", catalog, scan_filter=EqualTo("id", 77), columns=["x"])
    nothing_in("db.t", catalog, filters=[("id", "==", 7), ("x", "==", 7.0)])
    append_position_deletes(table, {data_files(table)[0].file_path: range(40)})
    nothing_in("db.t", catalog)
    commit_files(table, removed=lambda file: True)
    emptied = nothing_in("db.t", catalog, num_workers=2)
    assert (emptied.num_rows, len(emptied.files)) == (0, 0)
    assert emptied.snapshot_id is not None


def test_files_without_rows(catalog: WritingCatalog) -> None:
    table = make_table(catalog, files=1)
    for append in (append_orc_data, append_rows):
        append(table, numbers(500, 3))
    orc_path = append_orc_data(table, numbers(0, 0))
    (with_rows,) = parquet_files(table, numbers(600, 1))
    path = with_rows.file_path.replace(".parquet", "-empty.parquet")
    empty = schema_to_pyarrow(table.schema()).empty_table()
    pq.write_table(empty, path.removeprefix("file://"))
    size = len(table.io.new_input(path))
    described = describe_file(path=path, file_format="parquet", rows=0, size=size)
    commit_files(table, added=[described])
    assert orc_path
    expected = [*range(40), 500, 500, 501, 501, 502, 502]
    for options in ({}, {"split_rows": 2}, {"shuffle": True, "num_workers": 2}, {"lanes": 9}):
        _, dataset = loader_of("db.t", catalog, **options)
        assert dataset.num_rows == 46
        assert all_ids("db.t", catalog, **options) == expected
    assert all_ids("db.t", catalog, filters=[("id", ">", 500)]) == [501, 501, 502, 502]


def test_more_ranks_than_rows(catalog: WritingCatalog) -> None:
    make_table(catalog, files=1, rows=3)
    with pytest.raises(OptionError, match="3 rows cannot be shared by 4 ranks"):
        loader_of("db.t", catalog, rank=0, world_size=4)
