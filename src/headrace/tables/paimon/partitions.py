"""Which partitions of a table are wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pypaimon.common.predicate import Predicate
from pypaimon.common.predicate_builder import PredicateBuilder

from headrace.errors import OptionError
from headrace.formats.filters import near_names, rows_where
from headrace.tables.columns import Column
from headrace.tables.paimon.planning import Unit

__all__ = ["in_partitions", "wanted_partitions"]

_PLACE = "\0place"
_UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)


def wanted_partitions(
    given: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    keys: Sequence[str],
    columns: Mapping[str, Column],
    builder: PredicateBuilder,
) -> Predicate | None:
    """Partitions with the values of one of some mappings; a mapping may leave columns out."""
    if given is None:
        return None
    several = [given] if isinstance(given, Mapping) else given
    if not isinstance(several, list | tuple) or not all(
        isinstance(one, Mapping) and one for one in several or [None]
    ):
        raise OptionError(
            "partition_filter must be values by column, such as {'day': '2026-01-31'}, or a list "
            f"of such mappings, not {given!r}"
        )
    for name in (name for one in several for name in one):
        if name not in keys:
            kind = (
                f"the table is partitioned by {', '.join(map(repr, keys))}"
                if keys
                else ("the table is not partitioned")
            )
            hint = f"; {near_names(str(name), keys)}" if keys else "; filters= is for all columns"
            raise OptionError(f"partition_filter names {name!r}, but {kind}{hint}")
    return builder.or_predicates(
        [
            builder.and_predicates(
                [_with_value(builder, columns[name], value) for name, value in one.items()]
            )
            for one in several
        ]
    )


def _with_value(builder: PredicateBuilder, column: Column, value: Any) -> Predicate:
    if value is None:
        return builder.is_null(column.name)
    try:
        given = value if isinstance(value, pa.Scalar) else pa.scalar(value)
        typed = given if given.type == column.type else given.cast(column.type)
    except _UNFIT as error:
        raise OptionError(
            f"partition_filter: {value!r} is no value of the column {column.name!r}, which is "
            f"{column.type}: {error}"
        ) from None
    return builder.equal(column.name, typed.as_py())


def in_partitions(
    keep: ds.Expression, keys: Sequence[str], columns: Mapping[str, Column], units: Sequence[Unit]
) -> Sequence[Unit]:
    """What a filter over nothing but columns of the partition keeps: all of a file, or nothing."""
    places = {partition: at for at, partition in enumerate({unit.partition for unit in units})}
    values = {
        key: pa.array([partition[at] for partition in places], columns[key].type)
        for at, key in enumerate(keys)
    }
    kept = rows_where(pa.table({**values, _PLACE: list(places.values())}), keep)
    wanted = set(kept[_PLACE].to_pylist())
    return [unit for unit in units if places[unit.partition] in wanted]
