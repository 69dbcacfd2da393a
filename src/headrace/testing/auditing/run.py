"""``audit``: any loader through random schedules of kills, saves, resumes and resizes."""

from __future__ import annotations

import dataclasses
import multiprocessing
import pickle
import tempfile
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Literal

import headrace
from headrace.errors import OptionError
from headrace.loader.start import WorkerContext
from headrace.testing.auditing.judge import (
    Judgement,
    compare,
    in_global_order,
    in_rank_order,
    outcome_of,
)
from headrace.testing.auditing.legs import Batch, Resume, Runner, Trouble
from headrace.testing.auditing.rank import column_ids
from headrace.testing.auditing.report import AuditReport, Outcome
from headrace.testing.auditing.schedule import Leg, Schedule, Size, draw_schedule

__all__ = ["audit"]

Order = Literal["rank", "global"] | None
_ALONE = Size(1, 0)


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
    order: Order = "rank",
    merge: Callable[[list[Any]], Any] | None = None,
    start_method: str = "spawn",
    timeout_s: float = 60.0,
) -> AuditReport:
    """Kill, resume and resize the loaders of ``factory(rank, world_size, num_workers)``.

    They are iterables with ``state_dict`` and ``load_state_dict``, of this library or any other.
    ``factory``, ``row_id`` and ``merge`` are sent to fresh processes, so they must be importable.
    ``row_id`` names the rows of a batch (default: its column "row" or "id"); ``expected`` are the
    rows of an epoch (default: those of ``factory(0, 1, 0)``); ``may_drop`` of them, a number or a
    function of the number of ranks, may be missing at its end. ``order``: runs that keep their
    size are compared rank by rank ("rank"), all runs step by step over ranks ("global"), or none.
    Without ``merge`` only loaders of this library change their size. ``schedules`` are so many
    drawn from ``seed``, or some of an earlier report, to be run again.
    """
    sizes = _checked_sizes([*sizes, *_sizes_of(schedules)])
    _check(factory, schedules=schedules, epochs=epochs, order=order, timeout_s=timeout_s)
    for name, sent in (("factory", factory), ("row_id", row_id), ("merge", merge)):
        _check_importable(name, sent)
    runner = Runner(
        factory=factory,
        row_id=row_id or column_ids,
        epochs=epochs,
        timeout_s=timeout_s,
        context=_context(start_method),
        merge=merge,
    )
    with tempfile.TemporaryDirectory(prefix="headrace-audit-") as folder:
        whole = _run_whole(sizes, runner, Path(folder))
        rules = _Rules(
            expected=_expected_rows(expected, whole[_ALONE]),
            epochs=epochs,
            order=order,
            whole=whole,
            may_drop=may_drop if callable(may_drop) else lambda ranks: may_drop,
        )
        outcomes = [rules.judge_whole(run) for run in whole.values()]
        if not any(run.trouble for run in whole.values()):
            runner = _able_to_merge(runner, whole.values())
            if isinstance(schedules, int):
                schedules = _draw(schedules, seed, [whole[size] for size in sizes], runner)
            outcomes += [rules.judge(_run(each, runner, Path(folder))) for each in schedules]
    return AuditReport(len(rules.expected), epochs, tuple(outcomes))


@dataclass(frozen=True, slots=True)
class _Run:
    """A schedule, and what came of it."""

    schedule: Schedule
    batches: tuple[Batch, ...] = ()
    unsaved: tuple[int, ...] = ()
    ours: bool = False
    trouble: Trouble = ""
    detail: str = ""

    def steps(self) -> int:
        """Number of steps of the rank that took the fewest."""
        ranks = [batch.rank for batch in self.batches]
        return min(ranks.count(rank) for rank in range(self.schedule.legs[0].size.ranks))

    def ranks_at_end_of(self, epoch: int) -> int:
        """Number of ranks when the epoch came to its end.

        The leg that brought its last batch may have saved before the end of the epoch, and the next
        one have found less left than it has ranks: so the larger of the two counts.
        """
        legs = [batch.leg for batch in self.batches if batch.epoch == epoch]
        last = max(legs, default=len(self.schedule.legs) - 1)
        return max(leg.size.ranks for leg in self.schedule.legs[last : last + 2])


def _run(schedule: Schedule, runner: Runner, folder: Path) -> _Run:
    """Leg after leg. A leg that saved nothing leaves the next one where it began itself."""
    start, ours = Resume(), True
    batches: list[Batch] = []
    unsaved: list[int] = []
    for number, leg in enumerate(schedule.legs):
        done = runner.run(leg, number, folder / f"{schedule.name}.{number}", start)
        if done.trouble:
            detail = f"leg {number}, {leg}: {done.detail}"
            return _Run(schedule, trouble=done.trouble, detail=detail)
        batches += done.batches
        ours = ours and done.ours
        if done.saved is not None:
            start = done.saved
        elif leg.steps is not None:
            unsaved.append(number)
    return _Run(schedule, tuple(batches), tuple(unsaved), ours)


def _run_whole(sizes: Sequence[Size], runner: Runner, folder: Path) -> dict[Size, _Run]:
    """Each size without an interruption: how many steps there are, and in which order."""
    return {
        size: _run(Schedule(f"whole {size}", (Leg(size),)), runner, folder)
        for size in dict.fromkeys([_ALONE, *sizes])
    }


def _expected_rows(expected: Iterable[Hashable] | None, alone: _Run) -> list[Hashable]:
    if expected is not None:
        rows = list(expected)
    else:
        rows = [row for row, _ in in_rank_order(alone.batches, 0)]
    if not rows and not alone.trouble:
        raise OptionError("factory(0, 1, 0) makes a loader without rows: nothing can be audited")
    return rows


def _able_to_merge(runner: Runner, whole: Iterable[_Run]) -> Runner:
    """With this library's own way to merge states, if the loaders are its own."""
    if runner.merge is not None or not all(run.ours for run in whole):
        return runner
    return dataclasses.replace(runner, merge=getattr(headrace, "merge_states", None))


def _draw(count: int, seed: int, whole: Iterable[_Run], runner: Runner) -> list[Schedule]:
    steps = {run.schedule.legs[0].size: run.steps() for run in whole}
    can_merge = runner.merge is not None
    return [draw_schedule(seed, n, steps=steps, can_merge=can_merge) for n in range(1, count + 1)]


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rows and orders that are expected of runs."""

    expected: list[Hashable]
    epochs: int
    order: Order
    whole: Mapping[Size, _Run]
    may_drop: Callable[[int], int]

    def judge_whole(self, run: _Run) -> Outcome:
        """A run without interruption: the rows that are expected, in whatever order."""
        return self._outcome(run, self._by_rows)

    def judge(self, run: _Run) -> Outcome:
        """A schedule: the rows, and where there is something to compare with, the order."""
        if self.order == "global":
            return self._outcome(run, self._by_global_order)
        if self.order == "rank" and not run.schedule.resized:
            return self._outcome(run, self._by_rank_order)
        return self._outcome(run, self._by_rows)

    def _outcome(self, run: _Run, judge_epoch: Callable[[_Run, int], Judgement]) -> Outcome:
        if run.trouble:
            return Outcome(run.schedule, trouble=run.trouble, detail=run.detail)
        judgements = [judge_epoch(run, epoch) for epoch in range(self.epochs)]
        return outcome_of(run.schedule, judgements, unsaved=run.unsaved)

    def _by_rows(self, run: _Run, epoch: int) -> Judgement:
        comparison = compare(in_rank_order(run.batches, epoch), self.expected, ordered=False)
        may_drop = self.may_drop(run.ranks_at_end_of(epoch))
        return Judgement(epoch, len(self.expected), comparison, may_drop)

    def _by_rank_order(self, run: _Run, epoch: int) -> Judgement:
        """Leave out the end: an uninterrupted run of this size was judged for it."""
        same_size = self.whole[run.schedule.legs[0].size]
        expected = [row for row, _ in in_rank_order(same_size.batches, epoch)]
        comparison = compare(in_rank_order(run.batches, epoch), expected, ordered=True)
        left_out = max(0, len(self.expected) - len(expected))
        return Judgement(epoch, len(self.expected), comparison, 0, left_out)

    def _by_global_order(self, run: _Run, epoch: int) -> Judgement:
        expected = [row for row, _ in in_rank_order(self.whole[_ALONE].batches, epoch)]
        delivered = in_global_order(run.batches, epoch, expected)
        comparison = compare(delivered, expected, ordered=True)
        may_drop = self.may_drop(run.ranks_at_end_of(epoch))
        return Judgement(epoch, len(expected), comparison, may_drop)


def _context(start_method: str) -> BaseContext:
    """Return what starts ranks; a fork server of this library serves them and their workers."""
    known = multiprocessing.get_all_start_methods()
    if start_method not in known:
        raise OptionError(f"start_method must be one of {known}, not {start_method!r}")
    if start_method == "forkserver":
        return WorkerContext()
    return multiprocessing.get_context(start_method)


def _checked_sizes(sizes: Iterable[tuple[int, int]]) -> list[Size]:
    checked = list(dict.fromkeys(Size(*size) for size in sizes))
    if not checked or any(size.ranks < 1 or size.workers < 0 for size in checked):
        raise OptionError(
            f"sizes must be pairs of ranks (1 or more) and workers (0 or more), not {checked}"
        )
    return checked


def _sizes_of(schedules: int | Sequence[Schedule]) -> list[Size]:
    if isinstance(schedules, int):
        return []
    return [leg.size for schedule in schedules for leg in schedule.legs]


def _check(
    factory: object, *, schedules: object, epochs: int, order: object, timeout_s: float
) -> None:
    if not callable(factory):
        raise OptionError(
            f"factory must be a function of (rank, world_size, num_workers): {factory!r}"
        )
    if isinstance(schedules, int) and schedules < 0:
        raise OptionError(f"schedules must be 0 or more, not {schedules}")
    if epochs < 1 or timeout_s <= 0:
        raise OptionError(f"epochs and timeout_s must be positive, not {epochs} and {timeout_s}")
    if order not in ("rank", "global", None):
        raise OptionError(f'order must be "rank", "global" or None, not {order!r}')


def _check_importable(name: str, sent: object) -> None:
    try:
        pickle.dumps(sent)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise OptionError(
            f"{name} cannot be sent to another process ({error}): "
            "define it at the top of a module that can be imported"
        ) from error
