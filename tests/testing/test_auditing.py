"""The audit acquits correct loaders and convicts loaders that break a promise."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import audited_loaders as loaders
import pytest
from warm_interpreters import run_warm

from headrace.errors import OptionError
from headrace.testing import AuditReport, audit
from headrace.testing._legs import Leg, Schedule, Size, draw_schedule
from headrace.testing.auditing import Outcome, compare

ONE, TWO, ONE_AHEAD, TWO_AHEAD = Size(1, 0), Size(2, 0), Size(1, 2), Size(2, 2)
AHEAD = 4
"""batches that a loader with two workers has fetched and not delivered"""


def saves_at(steps: int, size: Size = ONE, victims: tuple[int, ...] = (0,)) -> Leg:
    return Leg(size, steps, beyond=1, victims=victims)


def run(factory: Any, *legs: Leg, **options: Any) -> Outcome:
    """Return the outcome of one schedule, after checking that runs without interruption succeed."""
    schedules = [Schedule("drawn by hand", legs)]
    report = audit_quickly(factory, schedules=schedules, sizes=[legs[0].size], **options)
    *whole, outcome = report.outcomes
    assert {each.verdict for each in whole} == {"ok"}, report
    return outcome


def audit_quickly(factory: Any, **options: Any) -> AuditReport:
    fitting: dict[str, Any] = {
        "start_method": "forkserver",
        "merge": loaders.merge,
        "may_drop": loaders.may_drop,
        "timeout_s": 300.0,
    }
    return audit(factory, **fitting | options)


def rows_of_batches(first: int, last: int, epoch: int = 0) -> set[int]:
    loader = loaders.ListLoader(0, 1, 0)
    loader.set_epoch(epoch)
    return {row for batch in loader.all_batches()[first:last] for row in batch}


# --- a correct loader


def test_a_right_loader_is_acquitted() -> None:
    report = audit_quickly(loaders.ListLoader, schedules=10)
    assert report.ok, report
    assert [outcome.verdict for outcome in report.outcomes] == ["ok"] * 14
    assert report.rows == loaders.ROWS
    drawn = [outcome.schedule for outcome in report.outcomes[4:]]
    assert any(schedule.resized for schedule in drawn)
    assert any(leg.victims for schedule in drawn for leg in schedule.legs)
    assert not any(outcome.unsaved for outcome in report.outcomes), report
    assert str(report).endswith("nothing lost, nothing twice, nothing out of order")


@pytest.mark.parametrize("factory", [loaders.ListLoader, loaders.TakingTurns])
def test_a_right_loader_keeps_the_global_order_when_resized(factory: Any) -> None:
    legs = [saves_at(3, ONE_AHEAD), saves_at(4, TWO, (0, 1)), Leg(ONE)]
    outcome = run(factory, *legs, order="global")
    assert outcome.verdict == "ok", outcome
    assert outcome.rows == 2 * loaders.ROWS


def test_rows_dropped_at_the_end_are_told_apart_from_lost_ones() -> None:
    legs = (saves_at(3, TWO, (1,)), Leg(TWO))
    allowed = run(loaders.ListLoader, *legs)
    assert (allowed.verdict, allowed.lost, allowed.dropped) == ("ok", 0, 4)
    whole = audit_quickly(loaders.ListLoader, schedules=0, sizes=[TWO], may_drop=0).outcomes
    assert [(outcome.verdict, outcome.lost) for outcome in whole] == [("ok", 0), ("wrong", 4)]


@pytest.mark.parametrize("factory", [loaders.ListLoader, loaders.RollingOver])
@pytest.mark.parametrize("legs", [(saves_at(25), saves_at(25)), (saves_at(12, TWO, (0, 1)),)])
def test_a_save_at_the_very_end_of_an_epoch(factory: Any, legs: tuple[Leg, ...]) -> None:
    outcome = run(factory, *legs, Leg(legs[0].size))
    assert outcome.verdict == "ok", outcome
    assert outcome.unsaved == ()


def test_nobody_is_killed_before_the_slowest_rank_has_saved() -> None:
    outcome = run(loaders.WithASlowRank, saves_at(2, TWO, (0,)), Leg(TWO), epochs=1)
    assert outcome.verdict == "ok", outcome
    assert outcome.unsaved == ()


def test_loaders_without_epochs_whose_states_are_not_json() -> None:
    options: dict[str, Any] = {"row_id": loaders.tuple_ids, "merge": None}
    outcome = run(loaders.WithoutEpochs, saves_at(24), saves_at(7), Leg(ONE), **options)
    assert (outcome.verdict, outcome.rows) == ("ok", 48), outcome


def test_ranks_start_afresh_by_spawn_unless_told_otherwise() -> None:
    schedule = Schedule("1", (Leg(ONE),))
    report = audit(loaders.ListLoader, schedules=[schedule], sizes=[ONE], epochs=1, timeout_s=300.0)
    assert report.ok, report


# --- loaders that break a promise


@pytest.mark.parametrize(("size", "victims"), [(ONE_AHEAD, (0,)), (TWO_AHEAD, (1,))])
def test_batches_forgotten_on_a_save_are_lost(size: Size, victims: tuple[int, ...]) -> None:
    outcome = run(loaders.Forgetful, saves_at(5, size, victims), Leg(size), epochs=1)
    lost = AHEAD * size.ranks
    assert (outcome.verdict, outcome.lost) == ("wrong", lost * loaders.BATCH)
    assert (outcome.duplicated, outcome.reordered) == (0, 0)
    forgotten = rows_of_batches(5 * size.ranks, 5 * size.ranks + lost)
    assert {finding.row for finding in outcome.findings} <= forgotten
    assert {(f.kind, f.epoch, f.leg) for f in outcome.findings} == {("lost", 0, 1)}


def test_a_batch_repeated_after_a_resume_is_duplicated() -> None:
    outcome = run(loaders.Repeating, saves_at(15, TWO, (0, 1)), saves_at(2, TWO, ()), Leg(TWO))
    assert (outcome.verdict, outcome.duplicated) == ("wrong", 2 * 2 * loaders.BATCH)
    assert (outcome.lost, outcome.reordered) == (0, 0)
    assert {(f.kind, f.epoch) for f in outcome.findings} == {("duplicated", 1)}


def test_another_order_after_a_resume_is_reordered() -> None:
    outcome = run(loaders.Reordering, saves_at(5), Leg(ONE))
    assert (outcome.verdict, outcome.reordered) == ("wrong", loaders.BATCH)
    assert (outcome.lost, outcome.duplicated) == (0, 0)
    (finding,) = outcome.findings
    assert (finding.kind, finding.epoch, finding.leg) == ("reordered", 0, 1)
    assert finding.row in rows_of_batches(6, 7)


def test_the_order_after_a_resize_counts_only_where_it_is_promised() -> None:
    legs = (saves_at(5), Leg(ONE_AHEAD))
    assert run(loaders.Reordering, *legs).verdict == "ok"
    assert run(loaders.Reordering, *legs, order="global").reordered == loaders.BATCH
    assert run(loaders.Reordering, saves_at(5), Leg(ONE), order=None).verdict == "ok"


def test_a_loader_that_hangs_is_ended_and_shows_its_threads() -> None:
    run(loaders.ListLoader, Leg(TWO))  # starts the server of processes, which takes seconds
    outcome = run(loaders.Hanging, saves_at(2, TWO, (0,)), Leg(TWO), timeout_s=15.0)
    assert outcome.verdict == "hung"
    assert "leg 1" in outcome.detail
    assert "did not end its leg within 15 s" in outcome.detail
    assert "wait_for_a_batch_that_never_comes" in outcome.detail


def test_a_loader_that_raises_shows_its_traceback() -> None:
    outcome = run(loaders.Raising, saves_at(2), Leg(ONE))
    assert outcome.verdict == "failed"
    assert "leg 1" in outcome.detail
    assert "KeyError: 'no such shard'" in outcome.detail


def test_ranks_that_share_nothing_are_convicted_without_any_interruption() -> None:
    report = audit_quickly(loaders.Overlapping, schedules=0, sizes=[ONE, TWO])
    assert [outcome.duplicated for outcome in report.outcomes] == [0, 2 * loaders.ROWS]
    assert not report.ok


def test_a_size_that_does_not_run_at_all_ends_the_audit() -> None:
    report = audit_quickly(loaders.broken_factory, schedules=5, sizes=[ONE, TWO])
    assert [outcome.verdict for outcome in report.outcomes] == ["ok", "failed"]
    assert "ConnectionError: no peer for rank" in str(report)


def test_random_schedules_convict_too() -> None:
    report = audit_quickly(loaders.Forgetful, schedules=4, sizes=[ONE_AHEAD])
    assert not report.ok
    assert report.lost > 0
    assert "rows lost, 0 duplicated" in report.summary()


# --- schedules


@pytest.mark.parametrize("victims", [(), (1,), (0, 1)])
def test_ranks_are_killed_in_the_middle_of_their_loop(
    tmp_path: Path, victims: tuple[int, ...]
) -> None:
    factory = partial(loaders.SayingFarewell, tmp_path)
    outcome = run(factory, saves_at(3, TWO, victims), Leg(TWO), epochs=1)
    assert outcome.verdict == "ok", outcome
    farewells = [(tmp_path / f"rank-{rank}").read_text().count("from 0\n") for rank in (0, 1)]
    # Before the schedule begins, rank 0 ends normally alone and with rank 1, and rank 1 only then.
    assert farewells == ([2, 1] if victims else [3, 2])


def test_the_same_seed_draws_the_same_schedules() -> None:
    steps = {ONE: 50, TWO: 24, ONE_AHEAD: 50}
    drawn = [draw_schedule(3, n, steps=steps, can_merge=True) for n in range(40)]
    assert drawn == [draw_schedule(3, n, steps=steps, can_merge=True) for n in range(40)]
    assert drawn != [draw_schedule(4, n, steps=steps, can_merge=True) for n in range(40)]
    assert all(schedule.legs[-1].steps is None for schedule in drawn)
    assert {len(leg.victims) for schedule in drawn for leg in schedule.legs} == {0, 1, 2}
    assert 10 < sum(schedule.resized for schedule in drawn) < 35


def test_the_same_seed_gives_the_same_report() -> None:
    first = audit_quickly(loaders.Forgetful, schedules=2, seed=5, sizes=[ONE_AHEAD])
    drawn = [outcome.schedule for outcome in first.outcomes[2:]]
    assert len(drawn) == 2
    again = audit_quickly(loaders.Forgetful, schedules=drawn, sizes=[ONE_AHEAD])
    assert again == first


def test_without_a_way_to_merge_states_the_size_stays() -> None:
    steps = {ONE: 50, TWO: 24}
    drawn = [draw_schedule(0, n, steps=steps, can_merge=False) for n in range(40)]
    assert not any(schedule.resized for schedule in drawn)
    assert not any(leg.merged for schedule in drawn for leg in schedule.legs)
    assert {schedule.legs[0].size for schedule in drawn} == {ONE, TWO}


# --- counting


def test_moved_rows_are_as_few_as_explain_the_order() -> None:
    delivered = [(row, 0) for row in "abcde"]
    assert compare(delivered, "abcde", ordered=True).moved == 0
    assert compare(delivered, "bcdea", ordered=True).moved == 1
    assert compare(delivered, "edcba", ordered=True).moved == 4
    assert compare(delivered, "edcba", ordered=False).moved == 0


def test_lost_and_repeated_rows_do_not_count_as_moved() -> None:
    result = compare([("a", 0), ("c", 1), ("a", 1), ("x", 1), ("e", 1)], "abcde", ordered=True)
    assert result.moved == 0
    assert result.surplus == (("a", 1), ("x", 1))
    assert result.missing == (("b", 1), ("d", 1))
    assert not result.missing_at_end


def test_rows_that_are_equal_are_counted_one_by_one() -> None:
    result = compare([("a", 0), ("a", 1), ("b", 1)], "aabb", ordered=True)
    assert (result.missing, result.surplus, result.moved) == ((("b", 1),), (), 0)
    assert result.missing_at_end


# --- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factory": lambda rank, world_size, num_workers: []}, "factory cannot be sent"),
        ({"row_id": lambda batch: batch}, "row_id cannot be sent"),
        ({"factory": "loaders.py"}, "factory must be a function"),
        ({"factory": loaders.without_rows}, "without rows"),
        ({"sizes": []}, "sizes must be"),
        ({"sizes": [(0, 1)]}, "sizes must be"),
        ({"order": "any"}, "order must be"),
        ({"epochs": 0}, "must be positive"),
        ({"schedules": -1}, "schedules 0 or more"),
        ({"start_method": "teleport"}, "start_method must be"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        audit_quickly(**{"factory": loaders.ListLoader, **options})


def test_batches_without_ids_fail_with_a_cure() -> None:
    report = audit_quickly(loaders.WithoutEpochs, sizes=[ONE], schedules=0)
    assert [outcome.verdict for outcome in report.outcomes] == ["failed"]
    assert "give row_id=" in str(report)


ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_schedule_of_each_format_order_filter_and_size() -> None:
    done = run_warm(ROOT / "scripts" / "audit.py", "--schedules", 12, timeout_s=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("runs: 0 rows lost, 0 duplicated, 0 out of order\n")
