"""Put any loader through random schedules of kills, saves, resumes and resizes; count its rows."""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Literal

from headrace.errors import OptionError
from headrace.loader import merge_states
from headrace.loader.start import WorkerContext
from headrace.testing._legs import (
    AuditedBatch,
    Leg,
    Loaders,
    Resume,
    Schedule,
    Size,
    Trouble,
    draw_schedule,
    run_leg,
)

__all__ = ["AuditReport", "ColumnIds", "Finding", "Outcome", "audit", "compare"]

AuditOrder = Literal["rank", "global"] | None
_ALONE = Size(1, 0)
_FINDINGS_OF_A_KIND = 5
_COLUMNS = ("schedule", "rows", "lost", "dropped", "duplicated", "reordered", "verdict", "legs")


def audit(
    factory: Callable[[int, int, int], Any],
    *,
    schedules: int | Sequence[Schedule] = 20,
    seed: int = 0,
    sizes: Iterable[tuple[int, int]] = ((1, 0), (1, 2), (2, 0), (2, 2)),
    row_id: Callable[[Any], Iterable[Hashable]] | None = None,
    epochs: int = 2,
    expected: Iterable[Hashable] | None = None,
    may_drop: int | Callable[[int], int] = 0,
    order: AuditOrder = "rank",
    merge: Callable[[list[Any]], Any] | None = None,
    start_method: str = "spawn",
    timeout_s: float = 60.0,
) -> AuditReport:
    """Kill, resume and resize loaders at random, and count their rows.

    They are iterables with ``state_dict`` and ``load_state_dict``, of this library or any other.

    Args:
        factory: Makes a loader of (rank, world_size, num_workers). It is sent to fresh processes,
            as ``row_id`` and ``merge`` are, so all three must be importable.
        schedules: Number of schedules that are drawn from ``seed``; or schedules of an earlier
            report, to run them again.
        seed: The seed.
        sizes: Numbers of ranks and of workers of each.
        row_id: Returns an id for each row of a batch; by default its column "row" or "id".
        epochs: Number of epochs of each run.
        expected: The rows of an epoch; by default the rows of ``factory(0, 1, 0)``.
        may_drop: Number of rows that may be missing at the end of an epoch, or a function that
            returns it for a number of ranks.
        order: "rank" compares runs that keep their size rank by rank, "global" all runs step by
            step over ranks, None no order.
        merge: Merges the states of all ranks into one. Without it only loaders of this library
            change their size.
        start_method: The way in which ranks are started.
        timeout_s: Seconds that a part of a run may take.

    Raises:
        OptionError: An argument is invalid, or the loaders have no rows.
    """
    given = [] if isinstance(schedules, int) else [s.size for one in schedules for s in one.legs]
    checked = list(dict.fromkeys(Size(*size) for size in (*sizes, *given)))
    if not checked or any(size.ranks < 1 or size.workers < 0 for size in checked):
        raise OptionError(
            f"sizes must be pairs of ranks (1 or more) and workers (0 or more), not {checked}"
        )
    if epochs < 1 or timeout_s <= 0 or (isinstance(schedules, int) and schedules < 0):
        raise OptionError("epochs and timeout_s must be positive, and schedules 0 or more")
    if order not in ("rank", "global", None):
        raise OptionError(f'order must be "rank", "global" or None, not {order!r}')
    for name, sent in (("factory", factory), ("row_id", row_id), ("merge", merge)):
        _check_importable(name, sent)
    loaders = Loaders(factory, row_id or ColumnIds("row", "id"), epochs, timeout_s, merge)
    context = _context(start_method)
    with tempfile.TemporaryDirectory(prefix="headrace-audit-") as folder:
        # Each size without an interruption: how many steps there are, and in which order.
        whole = {
            size: _run(Schedule(f"whole {size}", (Leg(size),)), loaders, Path(folder), context)
            for size in dict.fromkeys([_ALONE, *checked])
        }
        rows = [row for row, _ in whole[_ALONE].rows(0)] if expected is None else list(expected)
        if not rows and not whole[_ALONE].trouble:
            raise OptionError(
                "factory(0, 1, 0) makes a loader without rows: nothing can be audited"
            )
        rules = _Rules(rows, epochs, whole, may_drop if callable(may_drop) else lambda _: may_drop)
        outcomes = [rules.judge(run, None) for run in whole.values()]
        if not any(run.trouble for run in whole.values()):
            if merge is None and all(run.ours for run in whole.values()):
                loaders = replace(loaders, merge=merge_states)
            if isinstance(schedules, int):
                steps = {size: whole[size].steps() for size in checked}
                can_merge = loaders.merge is not None
                numbers = range(1, schedules + 1)
                schedules = [
                    draw_schedule(seed, n, steps=steps, can_merge=can_merge) for n in numbers
                ]
            for schedule in schedules:
                run = _run(schedule, loaders, Path(folder), context)
                outcomes.append(rules.judge(run, order))
    return AuditReport(len(rows), epochs, tuple(outcomes))


class ColumnIds:
    """The ids of a batch that is a mapping of columns: the first column that it has.

    Args:
        *names: The names of columns.
    """

    def __init__(self, *names: str) -> None:
        self.names = names

    def __call__(self, batch: Any) -> Iterable[Hashable]:
        """Return the ids of the rows of a batch."""
        columns = batch if isinstance(batch, Mapping) else {}
        for name in self.names:
            if name in columns:
                column = columns[name]
                ids: Iterable[Hashable] = column.tolist() if hasattr(column, "tolist") else column
                return ids
        raise OptionError(
            f"no column {' or '.join(map(repr, self.names))} among {', '.join(columns)} in a "
            f"{type(batch).__name__}; name the column (--id), or give row_id=, a function that "
            "takes a batch and returns an id for each of its rows"
        )


@dataclass(frozen=True, slots=True)
class _Trial:
    """A schedule and what its legs brought."""

    schedule: Schedule
    batches: tuple[AuditedBatch, ...] = ()
    unsaved: tuple[int, ...] = ()
    ours: bool = False
    trouble: Trouble = ""
    detail: str = ""

    def steps(self) -> int:
        """Return the number of steps of the rank that took the fewest."""
        ranks = [batch.rank for batch in self.batches]
        return min(ranks.count(rank) for rank in range(self.schedule.legs[0].size.ranks))

    def rows(
        self, epoch: int, global_order: Sequence[Hashable] | None = None
    ) -> list[tuple[Hashable, int]]:
        """Return the rows of an epoch with the legs that brought them.

        All rows of rank 0 as it was handed them, then those of rank 1, and so on. With a global
        order: the first batches of all ranks, then the second ones, and so on. The batches of a
        step may be on any ranks: they are put in the expected order.
        """
        places = {row: place for place, row in reversed(list(enumerate(global_order or ())))}

        def key(batch: AuditedBatch) -> tuple[int, ...]:
            if global_order is None:
                return batch.rank, batch.leg, batch.step
            first = min((places.get(row, 0) for row in batch.rows), default=0)
            return batch.leg, batch.step, first

        mine = sorted((batch for batch in self.batches if batch.epoch == epoch), key=key)
        return [(row, batch.leg) for batch in mine for row in batch.rows]

    def ranks_at_end_of(self, epoch: int) -> int:
        """Return the number of ranks at the end of the epoch.

        The leg that brought its last batch may have saved before the end of the epoch, and the next
        one have found less left than it has ranks: so the larger of the two counts.
        """
        legs = [batch.leg for batch in self.batches if batch.epoch == epoch]
        last = max(legs, default=len(self.schedule.legs) - 1)
        return max(leg.size.ranks for leg in self.schedule.legs[last : last + 2])


def _run(schedule: Schedule, loaders: Loaders, folder: Path, context: BaseContext) -> _Trial:
    """Run the legs in turn; after a leg without a save the next one has the same start."""
    start, ours = Resume(), True
    batches: list[AuditedBatch] = []
    unsaved: list[int] = []
    for number, leg in enumerate(schedule.legs):
        place = folder / f"{schedule.name}.{number}"
        done = run_leg(loaders, leg, number, place, start, context)
        if done.trouble:
            detail = f"leg {number}, {leg}: {done.detail}"
            return _Trial(schedule, trouble=done.trouble, detail=detail)
        batches += done.batches
        ours = ours and done.ours
        if done.saved is not None:
            start = done.saved
        elif leg.steps is not None:
            unsaved.append(number)
    return _Trial(schedule, tuple(batches), tuple(unsaved), ours)


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rows and orders that are expected of runs."""

    expected: list[Hashable]
    epochs: int
    whole: Mapping[Size, _Trial]
    may_drop: Callable[[int], int]

    def judge(self, run: _Trial, order: AuditOrder) -> Outcome:
        """Compare the rows of a run and, if an order is expected, their order."""
        if run.trouble:
            return Outcome(run.schedule, trouble=run.trouble, detail=run.detail)
        if order == "rank" and run.schedule.resized:
            order = None
        rows = lost = dropped = duplicated = reordered = 0
        findings: list[Finding] = []
        for epoch in range(self.epochs):
            expected, delivered, left_out = self.expected, run.rows(epoch), 0
            may_drop = self.may_drop(run.ranks_at_end_of(epoch))
            if order == "rank":
                # Leave out the end: an uninterrupted run of this size was judged for it.
                same_size = self.whole[run.schedule.legs[0].size]
                expected = [row for row, _ in same_size.rows(epoch)]
                left_out, may_drop = max(0, len(self.expected) - len(expected)), 0
            elif order == "global":
                expected = [row for row, _ in self.whole[_ALONE].rows(epoch)]
                delivered = run.rows(epoch, expected)
            found = compare(delivered, expected, ordered=order is not None)
            missing = len(found.missing)
            wrongly = 0 if missing <= may_drop and found.missing_at_end else missing
            rows += len(expected) if order == "global" else len(self.expected)
            lost += wrongly
            dropped += left_out + missing - wrongly
            duplicated += len(found.surplus)
            reordered += found.moved
            findings += [Finding("lost", row, epoch, leg) for row, leg in found.missing if wrongly]
            findings += [Finding("duplicated", row, epoch, leg) for row, leg in found.surplus]
            if found.first_moved is not None:
                findings.append(
                    Finding("reordered", found.first_moved[0], epoch, found.first_moved[1])
                )
        kinds = [[one for one in findings if one.kind == kind] for kind in _KINDS]
        few = tuple(one for kind in kinds for one in kind[:_FINDINGS_OF_A_KIND])
        return Outcome(run.schedule, rows, lost, dropped, duplicated, reordered, few, run.unsaved)


_KINDS = ("lost", "duplicated", "reordered")


def _context(start_method: str) -> BaseContext:
    """Return the context of ranks; a fork server of this library serves them and their workers."""
    known = multiprocessing.get_all_start_methods()
    if start_method not in known:
        raise OptionError(f"start_method must be one of {known}, not {start_method!r}")
    if start_method == "forkserver":
        return WorkerContext()
    return multiprocessing.get_context(start_method)


def _check_importable(name: str, sent: object) -> None:
    if sent is not None and not callable(sent):
        raise OptionError(f"{name} must be a function: {sent!r}")
    try:
        pickle.dumps(sent)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise OptionError(
            f"{name} cannot be sent to another process ({error}): "
            "define it at the top of a module that can be imported"
        ) from error


# --- the report


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between the rows of an epoch and the expected ones.

    Attributes:
        missing: Rows that never came, with the leg that should have brought them where that is
            known.
        missing_at_end: True if every missing row stands behind every row that came, or if there is
            no order.
        surplus: Rows that came more often than expected, with the leg that brought them once too
            often.
        moved: The fewest rows that would have to move for the others to be in order.
        first_moved: The first row that stands where another should, and its leg.
    """

    missing: tuple[tuple[Hashable, int | None], ...]
    missing_at_end: bool
    surplus: tuple[tuple[Hashable, int], ...]
    moved: int
    first_moved: tuple[Hashable, int] | None


def compare(
    delivered: Iterable[tuple[Hashable, int]], expected: Sequence[Hashable], *, ordered: bool
) -> Comparison:
    """Match rows and their legs with the expected rows, in the order in which they came."""
    places: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    for place, row in enumerate(expected):
        places[row].append(place)
    came: list[tuple[int, int]] = []  # the place of each row that was expected, and its leg
    surplus = []
    for row, leg in delivered:
        if places[row]:
            came.append((places[row].popleft(), leg))
        else:
            surplus.append((row, leg))
    absent = sorted(place for left in places.values() for place in left)
    moved, first_moved, present = 0, None, []
    if ordered:
        present = sorted(came)
        # The rows outside of the longest rising run are the fewest that have to move.
        moved = len(came) - _longest_rising_run([place for place, _ in came])
        wrong = (one for one, right in zip(came, present, strict=True) if one[0] != right[0])
        first_moved = next(((expected[place], leg) for place, leg in wrong), None)
    return Comparison(
        missing=tuple((expected[place], _leg_due(place, present)) for place in absent),
        missing_at_end=not absent or not present or absent[0] > present[-1][0],
        surplus=tuple(surplus),
        moved=moved,
        first_moved=first_moved,
    )


def _leg_due(place: int, present: Sequence[tuple[int, int]]) -> int | None:
    """Return the later one of the legs that brought the rows to both sides of a missing one.

    >>> _leg_due(3, [(1, 0), (2, 0), (5, 1)])
    1
    """
    at = bisect_left(present, (place, 0))
    return max((leg for _, leg in present[max(0, at - 1) : at + 1]), default=None)


def _longest_rising_run(places: Iterable[int]) -> int:
    """Return the length of the longest ascending subsequence."""
    # lowest_ends[n] is the lowest place in which a rising run of n + 1 places ends so far.
    lowest_ends: list[int] = []
    for place in places:
        at = bisect_left(lowest_ends, place)
        lowest_ends[at : at + 1] = [place]
    return len(lowest_ends)


@dataclass(frozen=True, slots=True)
class Finding:
    """A row that is lost, duplicated or misplaced; ``leg`` is None if not known."""

    kind: Literal["lost", "duplicated", "reordered"]
    row: Hashable
    epoch: int
    leg: int | None

    def __str__(self) -> str:
        """Return the finding in words.

        >>> print(Finding("lost", 17, epoch=1, leg=2))
        row 17 lost (epoch 1, leg 2)
        """
        where = f"epoch {self.epoch}" if self.leg is None else f"epoch {self.epoch}, leg {self.leg}"
        return f"row {self.row!r} {self.kind} ({where})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one schedule. If a leg hung or failed, its rows are not counted.

    Attributes:
        schedule: The schedule.
        rows: Number of rows that are expected, over all epochs.
        lost: Number of rows that are missing.
        dropped: Number of rows that are missing, but may be dropped at the end of an epoch.
        duplicated: Number of rows that came once too often, unknown ones included.
        reordered: The fewest rows that would have to move.
        findings: The first few of each kind.
        unsaved: Legs whose save did not count, because not all ranks reached it.
        trouble: "hung" or "failed".
        detail: The leg and the rank that hung or failed, with stacks or a traceback.
    """

    schedule: Schedule
    rows: int = 0
    lost: int = 0
    dropped: int = 0
    duplicated: int = 0
    reordered: int = 0
    findings: tuple[Finding, ...] = ()
    unsaved: tuple[int, ...] = ()
    trouble: Literal["", "hung", "failed"] = ""
    detail: str = ""

    @property
    def verdict(self) -> Literal["ok", "wrong", "hung", "failed"]:
        """``ok`` if every row came once, and in order if an order is expected."""
        if self.trouble:
            return self.trouble
        return "wrong" if self.lost or self.duplicated or self.reordered else "ok"

    def cells(self) -> tuple[str, ...]:
        """Return its line of the table."""
        counts = (self.rows, self.lost, self.dropped, self.duplicated, self.reordered)
        counted = ["–" if self.trouble else f"{count:,}" for count in counts]
        return (self.schedule.name, *counted, self.verdict, str(self.schedule))

    def remarks(self) -> Iterator[str]:
        """Yield what does not fit into the table."""
        for leg in self.unsaved:
            yield f"leg {leg}: not all ranks reached the save, so it did not count"
        yield from map(str, self.findings)
        yield from self.detail.splitlines()


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All outcomes of an audit; ``str`` makes a table of them.

    Attributes:
        rows: Number of rows of one epoch.
        epochs: Number of epochs.
        outcomes: First each size without an interruption, then the schedules.
    """

    rows: int
    epochs: int
    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """True if nothing was lost, came twice, was out of order, hung or failed."""
        return all(outcome.verdict == "ok" for outcome in self.outcomes)

    @property
    def lost(self) -> int:
        """Number of rows lost, over all schedules."""
        return sum(outcome.lost for outcome in self.outcomes)

    @property
    def duplicated(self) -> int:
        """Number of rows that came once too often, over all schedules."""
        return sum(outcome.duplicated for outcome in self.outcomes)

    @property
    def reordered(self) -> int:
        """Number of rows out of order, over all schedules."""
        return sum(outcome.reordered for outcome in self.outcomes)

    def summary(self) -> str:
        """Return one line about the schedules and their result."""
        schedules = [outcome.schedule for outcome in self.outcomes]
        legs = [leg for schedule in schedules for leg in schedule.legs]
        resizes = sum(a.size != b.size for one in schedules for a, b in pairwise(one.legs))
        done = (
            f"{len(schedules)} runs of {self.epochs} × {self.rows:,} rows, {len(legs)} legs, "
            f"{sum(bool(leg.victims) for leg in legs)} kills, {resizes} resizes"
        )
        if self.ok:
            return f"{done}: nothing lost, nothing twice, nothing out of order"
        verdicts = [outcome.verdict for outcome in self.outcomes]
        counted = {verdict: verdicts.count(verdict) for verdict in ("wrong", "hung", "failed")}
        bad = ", ".join(f"{count} {verdict}" for verdict, count in counted.items() if count)
        return (
            f"{done}: {bad}; {self.lost:,} rows lost, {self.duplicated:,} duplicated, "
            f"{self.reordered:,} reordered"
        )

    def __str__(self) -> str:
        table = [_COLUMNS, *(outcome.cells() for outcome in self.outcomes)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = []
        for cells in table:
            # Counts to the right, words to the left.
            counts = [
                cell.rjust(width) for cell, width in zip(cells[1:-2], widths[1:], strict=False)
            ]
            name, verdict = cells[0].ljust(widths[0]), cells[-2].ljust(widths[-2])
            lines.append("  ".join([name, *counts, verdict, cells[-1]]).rstrip())
        for outcome in self.outcomes:
            remarks = list(outcome.remarks())
            if remarks:
                lines += ["", f"{outcome.schedule.name}:", *(f"  {one}" for one in remarks)]
        return "\n".join([*lines, "", self.summary()])
