"""A filter that is wrong is an error in any mode, for tables as for files."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest
from numbered_tables import SCHEMA, all_ids, loader_of, make_table, numbers
from pyiceberg.transforms import IdentityTransform
from writers.catalogs import WritingCatalog
from writers.data_files import append_rows

from headrace.errors import OptionError

LARGE = 2**62
NAME = "tests.db.t"


@pytest.mark.parametrize("mode", ["raise", "skip"])
def test_wrong_filters_are_errors(catalog: WritingCatalog, mode: str) -> None:
    make_table(catalog, files=2)
    config = catalog.properties_for_users
    with pytest.raises(OptionError, match="and not bool"):
        loader_of(NAME, config, filters=pc.field("id") + 1, on_error=mode)
    with pytest.raises(OptionError, match=r"\.parquet.*cannot be applied.*overflow"):
        all_ids(NAME, config, filters=pc.field("id") + LARGE + LARGE > 0, on_error=mode)


def test_a_filter_over_partitions_that_cannot_be_computed(catalog: WritingCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    with table.update_spec() as change:
        change.add_field("id", IdentityTransform(), "part")
    append_rows(table, numbers(1, 2))
    wrong = pc.field("id") + LARGE + LARGE > 0
    with pytest.raises(OptionError, match=r"cannot be applied.*overflow"):
        loader_of(NAME, catalog.properties_for_users, filters=wrong, on_error="skip")


@pytest.mark.parametrize("partitioned", [False, True])
def test_integers_are_compared_with_floats_exactly(
    catalog: WritingCatalog, partitioned: bool
) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    if partitioned:
        with table.update_spec() as change:
            change.add_field("id", IdentityTransform(), "part")
    starts = (0, 2**24, 2**53, 2**63 - 3)
    for start in starts:
        append_rows(table, numbers(start, 2))
    config = catalog.properties_for_users
    ids = [start + step for start in starts for step in (0, 1)]
    assert sorted(all_ids(NAME, config, filters=[("id", ">", 0.5)])) == ids[1:]
    assert all_ids(NAME, config, filters=[("id", "==", 1.5)]) == []
    assert sorted(all_ids(NAME, config, filters=[("id", ">", 2.0**53)])) == ids[5:]
    found = all_ids(NAME, config, filters=[("id", "in", [1.5, 2.0**24, 2.0**53])])
    assert sorted(found) == [2**24, 2**53]
