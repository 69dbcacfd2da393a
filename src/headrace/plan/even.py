"""The same number of batches for every rank.

Batches are dealt to lanes in turn, and lanes to ranks in turn, so ranks differ only at the end of
an epoch. There the last batches are joined and cut again, so that every rank gets as many, of
nearly equal size (``share_last_round``). The batches before them do not depend on the number of
ranks. Lanes that a user's own strategy made may differ by more: these end early, or repeat rows
(``even_out``).

Rows must be counted for all of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.model import Int64Array
from headrace.plan.chunks import ROWS, Chunks, share_of
from headrace.plan.lanes import Lane, LanePlan, Span

__all__ = ["EvenPlan", "batches_in", "even_out", "first_in_turn", "share_last_round"]


@dataclass(frozen=True, slots=True)
class EvenPlan:
    """A plan in which all ranks have the same number of batches left.

    Attributes:
        plan: The lanes.
        dropped_rows: Number of rows that are left out, of all ranks.
        padded: Number of rows that each rank gets a second time.
        repeats: Lane and window of the rows that come a second time.
        same_rows: Number of rows of each lane that are as they were before; empty if all are.
    """

    plan: LanePlan
    dropped_rows: int = 0
    padded: tuple[int, ...] = ()
    repeats: tuple[tuple[int, int], ...] = ()
    same_rows: tuple[int, ...] = ()


def batches_in(rows: int, batch_size: int, drop_last: bool) -> int:
    """Return how many batches so many rows of a lane make."""
    return rows // batch_size if drop_last else -(-rows // batch_size)


def first_in_turn(counts: Sequence[int], wanted: int, turn: int = 0) -> list[int]:
    """How many of the first ``wanted`` batches come from each lane, one from each in turn.

    ``counts`` is what the lanes have, ``turn`` the lane that begins; a lane that has no more is
    passed over.
    """
    lanes = len(counts)
    in_order = [counts[(turn + place) % lanes] for place in range(lanes)]
    rounds, taken = 0, [0] * lanes
    while sum(taken) < min(wanted, sum(in_order)):
        left = [count for count in in_order if count > rounds]
        more = max(min(min(left) - rounds, (wanted - sum(taken)) // len(left)), 0)
        if more:
            rounds += more
            taken = [min(count, rounds) for count in in_order]
            continue
        missing = wanted - sum(taken)
        for place, count in enumerate(in_order):
            if count > rounds and missing:
                taken[place] += 1
                missing -= 1
    return [taken[(place - turn) % lanes] for place in range(lanes)]


def share_last_round(
    plan: LanePlan,
    ranks: int,
    *,
    taken: int = 0,
    batch_size: int,
    drop_last: bool,
    pad: bool,
    reorders: bool,
) -> EvenPlan:
    """Cut the last batches anew, so that every rank has the same number of them left.

    At the start of an epoch the rows of the last, incomplete round of the lanes are cut into as
    many batches as are needed, a multiple of ``ranks``, whose sizes differ by one row at most.
    Where ``taken`` batches were taken by another number of ranks, the last ones are joined and cut
    for these ranks, if they cannot share what is left.

    Fewer rows than ranks are left out, or some rows are repeated (``pad``). With ``drop_last`` all
    batches stay full, and fewer than ``ranks * batch_size`` rows are left out.

    Args:
        plan: Lanes that were dealt in turn: lane l has the batches l, l + lanes, l + 2 * lanes, …
        ranks: Number of ranks; it divides the lanes.
        taken: Number of batches that were taken before, over all ranks.
        batch_size: Number of rows in a batch.
        drop_last: Whether a short batch is left out.
        pad: Whether rows are repeated rather than left out.
        reorders: Whether the rows of a window are permuted.
    """
    lanes = [plan.lane(index) for index in range(len(plan))]
    rows = [lane.rows_left() for lane in lanes]
    short = 0
    if drop_last:  # what makes no full batch goes first
        full = [count - count % batch_size for count in rows]
        short, ends = sum(rows) - sum(full), {i: n for i, n in enumerate(full) if n < rows[i]}
        plan, rows = _cut_short(plan, lanes, ends, reorders), full
        lanes = [plan.lane(index) for index in range(len(plan))]
    last = [count - _before_last_batch(count, batch_size) for count in rows]
    batches = sum(-(-count // batch_size) for count in rows)
    if taken:
        tail = (batches - taken) % ranks
        wanted = ranks if tail else 0
    else:
        tail = batches - sum(rows) // (len(lanes) * batch_size) * len(lanes)
        wanted = ranks * -(-tail // ranks)
    places = [number % len(lanes) for number in range(batches - tail, batches)]
    held = sum(last[index] for index in places)
    sizes, repeated = _last_sizes(held, wanted, ranks, batch_size, drop_last, pad)
    if sizes == [last[index] for index in places]:
        return EvenPlan(plan, short, same_rows=tuple(rows) if short else ())
    dealt = _Dealt(lanes)
    same = list(rows)
    joined: list[_Segment] = []
    for index in places:
        joined += dealt.cut_off(index, last[index], reorders)
        same[index] -= last[index]
    if repeated:
        joined += [_Segment(part) for part in _single_chunks(_first_rows(plan.chunks, repeated))]
    padded, repeats = [0] * ranks, []
    source = iter(joined)
    rest: _Segment | None = None
    given = 0
    for number, size in enumerate(sizes, start=batches - tail):
        index = number % len(lanes)
        while size:
            rest = rest if rest is not None else next(source)
            part, rest = rest.split(size)
            window = dealt.append(index, part)
            if given >= held:
                padded[index % ranks] += part.rows
                repeats.append((index, window))
            size -= part.rows
            given += part.rows
    return EvenPlan(
        dealt.plan(plan),
        short + max(held - sum(sizes), 0),
        tuple(padded) if repeated else (),
        tuple(repeats),
        tuple(same),
    )


def _before_last_batch(rows: int, batch_size: int) -> int:
    """Return the rows of a lane before its last batch, which may be full itself."""
    return max(-(-rows // batch_size) - 1, 0) * batch_size


def _last_sizes(
    rows: int, wanted: int, ranks: int, batch_size: int, drop_last: bool, pad: bool
) -> tuple[list[int], int]:
    """Return the sizes of the last batches, and how many rows have to be repeated for them."""
    if drop_last:
        return [batch_size] * (ranks * (rows // (ranks * batch_size))), 0
    if rows >= wanted:
        return [rows // wanted + (place < rows % wanted) for place in range(wanted)], 0
    if pad:
        return [1] * wanted, wanted - rows
    return [1] * (wanted - ranks), 0


@dataclass(frozen=True, slots=True)
class _Segment:
    """Rows that follow each other: of one chunk, or, by a span, of a window that is permuted."""

    chunks: Chunks
    span: Span | None = None

    @property
    def rows(self) -> int:
        if self.span is None or self.span.stop is None:
            return int(self.chunks.length.sum())
        return self.span.stop - self.span.start

    def split(self, rows: int) -> tuple[_Segment, _Segment | None]:
        """Return the first rows, and what is left."""
        if rows >= self.rows:
            return self, None
        if self.span is not None:
            middle = self.span.start + rows
            head, tail = replace(self.span, stop=middle), replace(self.span, start=middle)
            return _Segment(self.chunks, head), _Segment(self.chunks, tail)
        return _Segment(_sliced(self.chunks, 0, rows)), _Segment(_sliced(self.chunks, rows, None))


def _sliced(chunk: Chunks, start: int, stop: int | None) -> Chunks:
    """Return some rows of a single chunk."""
    length = chunk.length.copy()
    length[:] = (int(length[0]) if stop is None else stop) - start
    size = share_of(chunk.size_bytes, length, chunk.length)
    return replace(chunk, offset=chunk.offset + start, length=length, size_bytes=size)


def _single_chunks(chunks: Chunks) -> Iterator[Chunks]:
    return (chunks[slice(place, place + 1)] for place in range(len(chunks)))


class _Dealt:
    """Lanes whose ends are moved to other lanes."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._chunks = [[lane.chunks] for lane in lanes]
        self._windows = [[lane.window] for lane in lanes]
        self._spans = {(lane.index, at): span for lane in lanes for at, span in lane.spans.items()}
        self._count = [lane.windows for lane in lanes]

    def cut_off(self, index: int, rows: int, reorders: bool) -> list[_Segment]:
        """Take the last rows off a lane from which nothing was taken before."""
        lane = self._lanes[index]
        segments: list[_Segment] = []
        window = lane.windows
        while rows:
            window -= 1
            chunks, span = lane.chunks[lane.members(window)], lane.span(window)
            stop = int(chunks.length.sum()) if span.stop is None else span.stop
            middle = max(span.start, stop - rows)
            rows -= stop - middle
            self._spans.pop((index, window), None)
            if reorders or window in lane.spans:
                segments.append(_Segment(chunks, replace(span, start=middle, stop=stop)))
                if middle > span.start:
                    self._spans[index, window] = replace(span, stop=middle)
            else:
                segments.append(_Segment(_sliced(chunks, middle, None)))
            end = lane.members(window).start
            if middle > span.start:
                end = lane.members(window).stop
            kept = lane.chunks[slice(0, end)]
            if middle > span.start and not reorders and window not in lane.spans:
                kept = Chunks.concat([kept[slice(0, end - 1)], _sliced(chunks, 0, middle)])
            self._chunks[index], self._windows[index] = [kept], [lane.window[:end]]
            self._count[index] = window + (middle > span.start)
        return segments[::-1]

    def append(self, index: int, segment: _Segment) -> int:
        """Put rows at the end of a lane, as a window of their own; return its number."""
        number = self._count[index]
        self._count[index] += 1
        self._chunks[index].append(segment.chunks)
        self._windows[index].append(np.full(len(segment.chunks), number, np.int64))
        if segment.span is not None:
            self._spans[index, number] = segment.span
        return number

    def plan(self, before: LanePlan) -> LanePlan:
        """Return the lanes as they are now."""
        chunks = [Chunks.concat(parts) for parts in self._chunks]
        windows = [np.concatenate(parts) for parts in self._windows]
        return _put_together(before, chunks, windows, self._spans)


def even_out(
    plan: LanePlan, ranks: int, *, batch_size: int, drop_last: bool, pad: bool, reorders: bool
) -> EvenPlan:
    """Give every rank as many batches as the one with the fewest, or, padding, the most.

    For lanes of a user's own strategy, which may differ by any number of rows. Rank r of R has the
    lanes r, r + R, …
    """
    lanes = [plan.lane(index) for index in range(len(plan))]
    rows = [lane.rows_left() for lane in lanes]
    counts = [batches_in(left, batch_size, drop_last) for left in rows]
    totals = [sum(counts[rank::ranks]) for rank in range(ranks)]
    if pad:
        return _padded(plan, lanes, rows, counts, totals, batch_size, drop_last)
    ends: dict[int, int] = {}
    for rank, total in enumerate(totals):
        if total > min(totals):
            allowed = first_in_turn(counts[rank::ranks], min(totals))
            for index, batches in zip(range(rank, len(lanes), ranks), allowed, strict=True):
                if batches < counts[index]:
                    ends[index] = batches * batch_size
    dropped = sum(rows[index] - left for index, left in ends.items())
    same = tuple(ends.get(index, count) for index, count in enumerate(rows))
    return EvenPlan(_cut_short(plan, lanes, ends, reorders), dropped, same_rows=same)


def _cut_short(
    plan: LanePlan, lanes: Sequence[Lane], ends: dict[int, int], reorders: bool
) -> LanePlan:
    """Let lanes end after so many rows; what comes before is as if they did not."""
    if not ends:
        return plan
    spans = dict(plan.spans)
    chunks, windows = [], []
    for lane in lanes:
        if lane.index not in ends:
            chunks.append(lane.chunks)
            windows.append(lane.window)
            continue
        window, row = lane.cursor_after(ends[lane.index])
        last = lane.members(window).stop if row > lane.span(window).start else 0
        kept = lane.chunks[slice(0, last)]
        if last and (reorders or window in lane.spans):
            spans[lane.index, window] = replace(lane.span(window), stop=row)
        elif last:
            length = kept.length.copy()
            length[-1] = row
            kept = replace(kept, length=length)
        for place in [at for at in spans if at[0] == lane.index and (not last or at[1] > window)]:
            del spans[place]
        chunks.append(kept)
        windows.append(lane.window[:last])
    return _put_together(plan, chunks, windows, spans)


def _padded(
    plan: LanePlan,
    lanes: Sequence[Lane],
    rows: Sequence[int],
    counts: Sequence[int],
    totals: Sequence[int],
    batch_size: int,
    drop_last: bool,
) -> EvenPlan:
    ranks = len(totals)
    padded, repeats = [0] * ranks, list[tuple[int, int]]()
    chunks = [lane.chunks for lane in lanes]
    windows = [lane.window for lane in lanes]
    for rank, total in enumerate(totals):
        missing = max(totals) - total
        if not missing:
            continue
        own = range(rank, len(lanes), ranks)
        needs = [_rows_for(rows[i], counts[i] + missing, batch_size, drop_last) for i in own]
        needed, _, index = min(zip(needs, (counts[i] for i in own), own, strict=True))
        source = next((lanes[i].chunks for i in (index, *own) if len(lanes[i].chunks)), plan.chunks)
        repeated = _first_rows(source, needed)
        chunks[index] = Chunks.concat([chunks[index], repeated])
        number = lanes[index].windows + np.arange(len(repeated))
        windows[index] = np.concatenate([windows[index], number])
        padded[rank] = needed
        repeats += [(index, int(window)) for window in number]
    if not repeats:
        return EvenPlan(plan)
    made = _put_together(plan, chunks, windows, dict(plan.spans))
    return EvenPlan(made, 0, tuple(padded), tuple(repeats), tuple(rows))


def _rows_for(rows: int, batches: int, batch_size: int, drop_last: bool) -> int:
    """Rows that a lane of ``rows`` lacks to make so many batches."""
    return (batches if drop_last else batches - 1) * batch_size + (not drop_last) - rows


def _first_rows(source: Chunks, wanted: int) -> Chunks:
    """The first rows of some chunks, over and over until there are enough."""
    parts: list[Chunks] = []
    while wanted > 0:
        ends = np.cumsum(source.length)
        count = int(np.searchsorted(ends, wanted)) + 1
        part = source[slice(0, count)]
        length = part.length.copy()
        if count <= len(ends):
            length[-1] -= int(ends[count - 1]) - wanted
        parts.append(replace(part, length=length))
        wanted -= int(length.sum())
    return Chunks.concat(parts)


def _put_together(
    plan: LanePlan,
    chunks: Sequence[Chunks],
    windows: Sequence[Int64Array],
    spans: dict[tuple[int, int], Span],
) -> LanePlan:
    bounds = np.cumsum([0, *map(len, chunks)])
    joined = Chunks.concat(list(chunks))
    assert (joined.kind == ROWS).all()
    return replace(plan, chunks=joined, bounds=bounds, window=np.concatenate(windows), spans=spans)
