"""Parts of expressions that no predicate of Iceberg says."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from predicates_said import NEW_YEAR, SCHEMA, TABLE_SCHEMA, F, other_than, unsaid
from pyiceberg.expressions import And, EqualTo, NotEqualTo, Or

from headrace.tables.iceberg.predicates import to_iceberg

UNSAYABLE = [
    unsaid(),
    F("long") == F("int"),
    F("long").cast(pa.int32()) == 5,
    F("long").cast(pa.float64()) == 5,
    F("double").cast(pa.float32()) == 0.1,
    F("ts").cast(pa.date32()) == date(2020, 1, 1),
    F("text").cast(pa.int64()) == 5,
    F("int").cast(pa.int64(), safe=False) == 5,
    pc.starts_with(F("text"), "a", ignore_case=True),
    pc.match_substring(F("text"), "a"),
    pc.utf8_lower(F("text")) == "a",
    pc.is_null(unsaid()),
    pc.if_else(F("flag"), F("flag"), F("flag")),
    pc.xor(F("flag"), F("flag")),
    F("missing") == 1,
    F("outer", "missing") == 1,
    F("list").is_null(),
    F("outer").is_valid(),
    F("outer", "sure").is_null(),
    F("fixed") > b"ab",
    F("tz") > NEW_YEAR,
    F("date") == "2020-01-01",
    F("text") == b"a",
    F("date") < pc.scalar(pa.scalar(2**31 - 1, pa.date32())),
    F("ts") > pc.scalar(pa.scalar(2**40, pa.timestamp("s"))),
    F("decimal").isin([1e300]),
    F("long"),
    F(0) == 1,
]


@pytest.mark.parametrize("expression", UNSAYABLE, ids=str)
def test_what_cannot_be_said_is_dropped_and_named(expression: ds.Expression) -> None:
    said = to_iceberg(expression, SCHEMA, TABLE_SCHEMA)
    assert (said.predicate, said.whole) == (None, False)
    assert len(said.dropped) == 1
    assert said.dropped[0]


def test_a_dropped_part_only_ever_widens() -> None:
    told, dropped = F("int") == 5, "greater(add(long, 1), 3)"
    positive, negative = EqualTo("int", 5), other_than("int", NotEqualTo("int", 5))
    for expression, predicate, text in [
        (told & unsaid(), positive, dropped),
        (unsaid() & told & F("flag"), And(positive, EqualTo("flag", True)), dropped),
        (~(told | unsaid()), negative, f"not {dropped}"),
        (told | unsaid(), None, f"or_kleene(equal(int, 5), {dropped})"),
        (~(told & unsaid()), None, f"not and_kleene(equal(int, 5), {dropped})"),
        ((told | unsaid()) & told, positive, f"or_kleene(equal(int, 5), {dropped})"),
        ((told & unsaid()) | told, Or(positive, positive), dropped),
        (~(~told | ~unsaid()), positive, dropped),
    ]:
        said = to_iceberg(expression, SCHEMA, TABLE_SCHEMA)
        assert (said.predicate, said.whole, said.dropped) == (predicate, False, (text,))


def test_true_and_something_unsayable_says_nothing() -> None:
    said = to_iceberg(pc.scalar(True) & unsaid(), SCHEMA, TABLE_SCHEMA)
    assert (said.predicate, said.whole) == (None, False)
