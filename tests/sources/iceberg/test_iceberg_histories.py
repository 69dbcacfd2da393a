"""Random histories: what is read is what a plain model says, and what other readers read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from writers.catalogs import WritingCatalog, local_catalog
from writers.committing import live_entries
from writers.histories import ACTIONS, History
from writers.oracle import rows_by_oracle
from writers.second_readers import (
    DuckDB,
    duckdb_can_read,
    multiset,
    rows_by_pyiceberg,
)

from headrace import IcebergDataset

NUMBERS = itertools.count(1)
# A failure tells its history; to find a shorter one would take minutes.
PHASES = (Phase.explicit, Phase.generate)
Actions = tuple[list[tuple[str, int]], list[tuple[str, int]]]
histories = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 9999)), min_size=2, max_size=6
)
# Deletes are what can go wrong: half of the actions.
deletes = st.tuples(
    st.sampled_from(["append", "delete_positions", "delete_equal", "upsert"]),
    st.integers(0, 9999),
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WritingCatalog]:
    """One catalog for all examples, in memory: a commit to a file waits for the disk."""
    folder = tmp_path_factory.mktemp("histories")
    uri = "sqlite:///file:/histories?vfs=memdb&uri=true"
    with local_catalog(Path(folder), uri=uri) as catalog:
        catalog.create_namespace("db")
        yield catalog


# Always the same examples: a second reader that crashes takes the test process with it.
TIMES = 10 if settings.get_current_profile_name() == "thorough" else 1
same_examples = settings(max_examples=12 * TIMES, derandomize=True, phases=PHASES)
fewer_examples = settings(max_examples=5 * TIMES, derandomize=True, phases=PHASES)
given_history = given(
    partitioned=st.none() | st.integers(0, 9),
    actions=st.tuples(histories, st.lists(deletes, max_size=3)),
    seed=st.integers(0, 9999),
)


@pytest.mark.parametrize("version", [1, 2, 3])
@same_examples
@given_history
def test_rows_are_those_that_duckdb_reads(
    shared: WritingCatalog,
    duck: DuckDB,
    version: int,
    partitioned: int | None,
    actions: Actions,
    seed: int,
) -> None:
    how = {"version": version, "nulls": False, "for_duckdb": True, "partitioned": partitioned}
    name, history = lived_through(shared, actions, seed, **how)
    assert duckdb_can_read(history.table)
    assert multiset(duck.rows(history.table)) == history.expected()
    check_all_rows(name, shared, history, Random(seed))
    check_some_rows(name, shared, history, Random(seed))


@pytest.mark.parametrize("in_orc", [False, True])
@pytest.mark.parametrize("version", [2, 3])
@fewer_examples
@given_history
def test_rows_are_right_also_where_duckdb_is_not(
    shared: WritingCatalog,
    duck: DuckDB,
    version: int,
    in_orc: bool,
    partitioned: int | None,
    actions: Actions,
    seed: int,
) -> None:
    """Nulls in the columns of equality deletes, deletes of one partition, changed columns, ORC."""
    how = {"version": version, "orc": in_orc, "partitioned": partitioned}
    name, history = lived_through(shared, actions, seed, **how)
    assert multiset(read_by_another(history.table, duck)) == history.expected()
    check_all_rows(name, shared, history, Random(seed))
    check_some_rows(name, shared, history, Random(seed))


def lived_through(
    catalog: WritingCatalog, actions: Actions, seed: int, **how: Any
) -> tuple[str, History]:
    """A new table that all actions were done to, in some order."""
    name = f"db.t{next(NUMBERS)}"
    history = History.begin(catalog, name, **how)
    mixed = [*actions[0], *actions[1]]
    Random(seed).shuffle(mixed)
    for action, chosen in mixed:
        history.act(action, chosen)
    return name, history


def check_all_rows(name: str, catalog: WritingCatalog, history: History, random: Random) -> None:
    dataset = open_dataset(name, catalog, **random_order(random))
    rows = rows_of(dataset)
    assert rows.column_names == [one.name for one in history.table.schema().fields]
    assert multiset(rows) == history.expected(), "\n".join(history.told)


def check_some_rows(name: str, catalog: WritingCatalog, history: History, random: Random) -> None:
    """Some columns, and rows by a filter that may name others."""
    names = [one.name for one in history.table.schema().fields]
    columns = random.sample(names, random.randint(1, len(names)))
    keep = random_filter(random, history)
    dataset = open_dataset(name, catalog, columns=columns, filters=keep, **random_order(random))
    whole = open_dataset(name, catalog).schema
    model = pa.Table.from_pylist(list(history.rows_by_name()), schema=whole)
    wanted = model.filter(keep).select(columns)
    assert multiset(rows_of(dataset)) == multiset(wanted), f"{keep}\n" + "\n".join(history.told)


def read_by_another(table: Table, duck: DuckDB) -> pa.Table:
    if duckdb_can_read(table):
        return duck.rows(table)
    contents = {entry.data_file.content for entry in live_entries(table)}
    if DataFileContent.EQUALITY_DELETES in contents:
        return rows_by_oracle(table)
    return rows_by_pyiceberg(table)


def open_dataset(name: str, catalog: WritingCatalog, **options: Any) -> IcebergDataset:
    options = {"batch_size": 5, "output_format": "arrow", **options}
    return IcebergDataset(f"tests.{name}", catalog.properties_for_users, **options)


def random_order(random: Random) -> dict[str, Any]:
    return {
        "lanes": random.choice([None, 1, 2, 3, 5]),
        "shuffle": random.random() < 0.5,
        "split_rows": random.choice([None, 1, 4, 11]),
    }


def random_filter(random: Random, history: History) -> pc.Expression:
    """A comparison or two of columns with values that are there, or nearly."""
    fields = [one for one in history.table.schema().fields if not one.field_type.is_struct]
    parts = []
    for _ in range(random.randint(1, 2)):
        one = random.choice(fields)
        column = pc.field(one.name)
        value = history.any_value(random, one)
        parts.append(
            random.choice(
                [
                    column == value,
                    column != value,
                    column < value,
                    column >= value,
                    column.isin([value, history.any_value(random, one)]),
                    column.is_null(),
                    ~(column > value),
                ]
            )
        )
    return (
        parts[0] if len(parts) == 1 else random.choice([parts[0] & parts[1], parts[0] | parts[1]])
    )


def rows_of(dataset: IcebergDataset) -> pa.Table:
    batches = [as_table(batch) for batch in dataset]
    return pa.concat_tables([dataset.schema.empty_table(), *batches])


def as_table(batch: pa.Table | pa.RecordBatch) -> pa.Table:
    return batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
