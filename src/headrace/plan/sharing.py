"""Give every rank the same number of batches.

Batches are dealt to lanes in turn, and lanes to ranks in turn, so ranks differ only at the end of
an epoch. There the last batches are joined and cut again, so that every rank gets as many, of
nearly equal size (``share_last_round``). The batches before them do not depend on the number of
ranks. Lanes that a user's own strategy made may differ by more: these end early, or repeat rows
(``even_out``).

Rows must be counted for all of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.plan.chunks import Chunks, share_of
from headrace.plan.lanes import Plan, Span

__all__ = ["batches_in", "even_out", "first_in_turn", "share_last_round"]


def batches_in(rows: int, batch_size: int, drop_last: bool) -> int:
    """Return how many batches so many rows of a lane make."""
    return rows // batch_size if drop_last else -(-rows // batch_size)


def first_in_turn(counts: Sequence[int], wanted: int) -> list[int]:
    """Return how many of the first ``wanted`` batches come from each lane, one from each in turn.

    ``counts`` is what the lanes have; a lane that has no more is passed over.
    """
    most, least = max(counts, default=0), 0
    while least < most:  # the largest number of whole rounds that are not too much
        rounds = (least + most + 1) // 2
        if sum(min(count, rounds) for count in counts) <= wanted:
            least = rounds
        else:
            most = rounds - 1
    taken = [min(count, least) for count in counts]
    missing = wanted - sum(taken)
    for lane, count in enumerate(counts):
        if count > least and missing > 0:
            taken[lane] += 1
            missing -= 1
    return taken


def share_last_round(
    plan: Plan,
    ranks: int,
    *,
    taken: int = 0,
    batch_size: int,
    drop_last: bool,
    pad: bool,
    reorders: bool,
) -> Plan:
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
    lanes = len(plan)
    rows = [plan.lane(index).rows_left() for index in range(lanes)]
    full = [count - count % batch_size for count in rows] if drop_last else rows
    counts = [-(-count // batch_size) for count in full]
    last = [n - max(count - 1, 0) * batch_size for n, count in zip(full, counts, strict=True)]
    batches = sum(counts)
    if taken:
        tail = (batches - taken) % ranks
        wanted = ranks if tail else 0
    else:
        tail = batches - sum(full) // (lanes * batch_size) * lanes
        wanted = ranks * -(-tail // ranks)
    moved = {number % lanes: last[number % lanes] for number in range(batches - tail, batches)}
    held = sum(moved.values())
    sizes, repeated = _last_sizes(held, wanted, ranks, batch_size, drop_last, pad)
    if sizes == list(moved.values()):  # these batches can stay where they are
        moved, sizes = {}, []
    dropped = sum(rows) - sum(full) + (max(held - sum(sizes), 0) if moved else 0)
    if not moved and not dropped:
        return plan
    ends, line = _Ends(plan, reorders), _Line()
    same = [count - moved.get(index, 0) for index, count in enumerate(full)]
    for index in (*moved, *(index for index in range(lanes) if index not in moved)):
        cut_off = _Line(ends.cut_off(index, rows[index] - same[index]))
        line.add(cut_off.take(moved.get(index, 0)))
    line.add(_single_chunks(_first_rows(plan.chunks, repeated)))
    repeats: list[tuple[int, int]] = []
    given = 0
    for number, size in enumerate(sizes, start=batches - tail):
        for segment in line.take(size):
            place = ends.append(number % lanes, segment)
            if given >= held:
                repeats.append(place)
            given += segment.rows
            # A segment never holds both: rows that are repeated begin with one of their own.
    return ends.plan(dropped, same, repeats)


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


def even_out(
    plan: Plan, ranks: int, *, batch_size: int, drop_last: bool, pad: bool, reorders: bool
) -> Plan:
    """Give every rank as many batches as the one with the fewest, or, padding, the most.

    For lanes of a user's own strategy, which may differ by any number of rows. Rank r of R has the
    lanes r, r + R, …
    """
    rows = [plan.lane(index).rows_left() for index in range(len(plan))]
    counts = [batches_in(left, batch_size, drop_last) for left in rows]
    totals = [sum(counts[rank::ranks]) for rank in range(ranks)]
    if len(set(totals)) == 1:
        return plan
    ends, same, repeats, dropped = _Ends(plan, reorders), list(rows), [], 0
    for rank, total in enumerate(totals):
        own = range(rank, len(rows), ranks)
        missing = max(totals) - total
        if pad and missing:
            batches = {index: counts[index] + missing - (not drop_last) for index in own}
            needs = {i: n * batch_size + (not drop_last) - rows[i] for i, n in batches.items()}
            index = min(own, key=lambda index: (needs[index], counts[index], index))
            source = next((c for i in (index, *own) if len(c := plan.lane(i).chunks)), plan.chunks)
            for segment in _single_chunks(_first_rows(source, needs[index])):
                repeats.append(ends.append(index, segment))
        elif not pad:
            allowed = first_in_turn(counts[rank::ranks], min(totals))
            for index, batches_left in zip(own, allowed, strict=True):
                if batches_left < counts[index]:
                    same[index] = batches_left * batch_size
                    dropped += rows[index] - same[index]
                    ends.cut_off(index, rows[index] - same[index])
    return ends.plan(dropped, same, repeats)


# --- the ends of lanes


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

    def split(self, rows: int) -> tuple[_Segment, _Segment]:
        """Return the first rows, and all others."""
        if self.span is not None:
            middle = self.span.start + rows
            head, tail = replace(self.span, stop=middle), replace(self.span, start=middle)
            return _Segment(self.chunks, head), _Segment(self.chunks, tail)
        return _Segment(_sliced(self.chunks, 0, rows)), _Segment(_sliced(self.chunks, rows, None))


def _sliced(chunk: Chunks, start: int, stop: int | None) -> Chunks:
    """Return some rows of a single chunk."""
    length = (chunk.length if stop is None else np.full_like(chunk.length, stop)) - start
    size = share_of(chunk.size_bytes, length, chunk.length)
    return replace(chunk, offset=chunk.offset + start, length=length, size_bytes=size)


def _single_chunks(chunks: Chunks) -> Iterator[_Segment]:
    return (_Segment(chunks[slice(place, place + 1)]) for place in range(len(chunks)))


def _first_rows(source: Chunks, wanted: int) -> Chunks:
    """Return the first rows of some chunks, over and over until there are enough."""
    if not wanted:
        return Chunks.empty()
    times = -(-wanted // int(source.length.sum()))
    chunks = Chunks.concat([source] * times) if times > 1 else source
    ends = np.cumsum(chunks.length)
    count = int(np.searchsorted(ends, wanted)) + 1
    first = chunks[slice(0, count)]
    length = first.length.copy()
    length[-1] -= int(ends[count - 1]) - wanted
    return replace(first, length=length)


class _Line:
    """Rows laid end to end, of which the first are taken."""

    def __init__(self, segments: Iterable[_Segment] = ()) -> None:
        self._segments = deque(segments)

    def add(self, segments: Iterable[_Segment]) -> None:
        """Put rows at the end."""
        self._segments.extend(segments)

    def take(self, rows: int) -> Iterator[_Segment]:
        """Take the first rows."""
        while rows:
            first = self._segments.popleft()
            if first.rows > rows:
                first, rest = first.split(rows)
                self._segments.appendleft(rest)
            rows -= first.rows
            yield first


class _Ends:
    """The lanes of a plan, while their ends are cut off and other rows are appended."""

    def __init__(self, plan: Plan, reorders: bool) -> None:
        self._plan, self._reorders = plan, reorders
        self._lanes = [plan.lane(index) for index in range(len(plan))]
        self._chunks = [[lane.chunks] for lane in self._lanes]
        self._windows = [[lane.window] for lane in self._lanes]
        self._counts = [lane.windows for lane in self._lanes]
        self._spans = dict(plan.spans)

    def cut_off(self, index: int, rows: int) -> list[_Segment]:
        """Take the last rows off a lane, once, and return them in order."""
        lane, window = self._lanes[index], self._lanes[index].windows
        segments: list[_Segment] = []
        while rows:
            window -= 1
            members, span = lane.members(window), lane.span(window)
            chunks = lane.chunks[members]
            stop = int(chunks.length.sum()) if span.stop is None else span.stop
            middle = max(span.start, stop - rows)
            rows -= stop - middle
            is_ordered = self._reorders or window in lane.spans
            if is_ordered:
                segments.append(_Segment(chunks, replace(span, start=middle, stop=stop)))
            else:
                segments.append(_Segment(_sliced(chunks, middle, None)))
            self._spans.pop((index, window), None)
            if rows:
                continue
            kept, self._counts[index] = lane.chunks[slice(0, members.start)], window
            if middle > span.start:  # the beginning of this window stays
                self._counts[index] += 1
                if is_ordered:
                    self._spans[index, window] = replace(span, stop=middle)
                kept = Chunks.concat([kept, chunks if is_ordered else _sliced(chunks, 0, middle)])
            self._chunks[index], self._windows[index] = [kept], [lane.window[: len(kept)]]
        return segments[::-1]

    def append(self, index: int, segment: _Segment) -> tuple[int, int]:
        """Put rows at the end of a lane, as a window of their own; return lane and window."""
        number = self._counts[index]
        self._counts[index] += 1
        self._chunks[index].append(segment.chunks)
        self._windows[index].append(np.full(len(segment.chunks), number, np.int64))
        if segment.span is not None:
            self._spans[index, number] = segment.span
        return index, number

    def plan(self, dropped: int, same: Sequence[int], repeats: Sequence[tuple[int, int]]) -> Plan:
        """Return the lanes as they are now; ``same`` is how many rows of each have not changed."""
        plan = self._plan
        chunks = [Chunks.concat(parts) for parts in self._chunks]
        windows = [part for parts in self._windows for part in parts]
        return replace(
            plan,
            chunks=Chunks.concat(chunks),
            bounds=np.cumsum([0, *map(len, chunks)]),
            window=np.concatenate(windows),
            spans=self._spans,
            dropped_rows=plan.dropped_rows + dropped,
            same_rows=tuple(map(min, same, plan.same_rows or same)),
            repeats=tuple(repeats),
        )
