"""Wanted ranges become requests: all of them, nothing twice, and little that nobody asked for."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.storage import Requests
from headrace.storage._ranges import shares, without

Span = tuple[int, int]

SPANS = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(0, 400)).map(lambda s: (s[0], s[0] + s[1])),
    max_size=12,
)
FAR_SPANS = st.lists(
    st.tuples(st.integers(0, 1 << 33), st.integers(0, 1 << 26)).map(lambda s: (s[0], s[0] + s[1])),
    max_size=12,
)


def bytes_of(spans: list[Span]) -> set[int]:
    return {byte for start, stop in spans for byte in range(start, stop)}


def length_of(spans: list[Span]) -> int:
    """The number of bytes in ranges that may overlap."""
    total, reached = 0, 0
    for start, stop in sorted(spans):
        total += max(stop - max(start, reached), 0)
        reached = max(reached, stop)
    return total


def joined(wanted: list[Span], max_gap: int) -> list[Span]:
    """The ranges of bytes that hang together if gaps up to a length are filled: the slow way."""
    runs: list[Span] = []
    for start, stop in sorted(span for span in wanted if span[1] > span[0]):
        if runs and start - runs[-1][1] <= max_gap:
            runs[-1] = runs[-1][0], max(stop, runs[-1][1])
        else:
            runs.append((start, stop))
    return runs


@given(SPANS, st.none() | st.integers(0, 500), st.integers(1, 700))
@example([(0, 10), (10, 20), (25, 30)], 4, 12)
@example([(0, 100), (50, 400), (400, 401)], 0, 7)
def test_every_wanted_byte_is_in_one_request(
    wanted: list[Span], max_gap: int | None, most: int
) -> None:
    requests = Requests(max_gap_bytes=max_gap, max_request_bytes=most).plan(wanted)
    assert all(start < stop for start, stop in requests)
    assert all(before[1] <= after[0] for before, after in pairwise(requests))
    assert all(stop - start <= most for start, stop in requests)
    assert bytes_of(wanted) <= bytes_of(requests)


@given(FAR_SPANS, st.sampled_from([1 << 16, 8 << 20, 1 << 40]))
@example([(i << 20, (i << 20) + 15_000) for i in range(12)], 8 << 20)
@example([(0, 16 << 20), (17 << 20, 18 << 20)], 1 << 40)
def test_by_default_a_sixteenth_is_wasted_at_most(wanted: list[Span], most: int) -> None:
    requests = Requests(max_request_bytes=most).plan(wanted)
    needed = length_of(wanted)
    assert length_of([*wanted, *requests]) == length_of(requests)
    assert length_of(requests) - needed <= needed // 16


@given(SPANS, st.integers(0, 500))
@example([(0, 10), (20, 30), (41, 50)], 10)
def test_gaps_are_fetched_up_to_the_given_length_exactly(wanted: list[Span], max_gap: int) -> None:
    requests = Requests(max_gap_bytes=max_gap, max_request_bytes=1 << 40).plan(wanted)
    assert requests == joined(wanted, max_gap)


@given(SPANS, st.integers(0, 500), st.integers(1, 700))
def test_short_requests_waste_no_more_than_long_ones(
    wanted: list[Span], max_gap: int, most: int
) -> None:
    requests = Requests(max_gap_bytes=max_gap, max_request_bytes=most).plan(wanted)
    allowed = bytes_of(joined(wanted, max_gap))
    assert bytes_of(requests) <= allowed


@given(SPANS, st.none() | st.integers(0, 500), st.integers(400, 2000))
def test_a_range_that_fits_is_not_cut(wanted: list[Span], max_gap: int | None, most: int) -> None:
    """What decoders read at once comes by one request, unless ranges overlap into longer ones."""
    requests = Requests(max_gap_bytes=max_gap, max_request_bytes=most).plan(wanted)
    overlapping = joined(wanted, -1)
    for start, stop in overlapping:
        if stop - start <= most:
            assert any(first <= start and stop <= last for first, last in requests)


def test_columns_that_follow_each_other_are_one_request() -> None:
    columns = [(4 + 1000 * i, 1004 + 1000 * i) for i in range(21)]
    assert Requests().plan(columns) == [(4, 21_004)]
    assert Requests().plan(reversed(columns)) == [(4, 21_004)]


def test_requests_end_where_ranges_do() -> None:
    """Eight columns of 3 MiB in requests of at most 8 MiB: two columns each."""
    mib = 1 << 20
    columns = [(3 * mib * i, 3 * mib * (i + 1)) for i in range(8)]
    assert Requests().plan(columns) == [(6 * mib * i, 6 * mib * (i + 1)) for i in range(4)]


def test_a_long_range_is_cut_evenly() -> None:
    requests = Requests(max_request_bytes=100).plan([(1000, 1201)])
    assert [stop - start for start, stop in requests] == [67, 67, 67]


def test_a_gap_is_fetched_by_default_only_if_it_is_small_beside_what_is_wanted() -> None:
    assert Requests().plan([(0, 8000), (9000, 17_000)]) == [(0, 17_000)]
    assert Requests().plan([(0, 8000), (9001, 17_001)]) == [(0, 8000), (9001, 17_001)]
    wide = (1 << 20) + 1
    much = [(0, 1 << 26), ((1 << 26) + wide, 1 << 27)]
    assert Requests(max_request_bytes=1 << 40).plan(much) == much


def test_nothing_wanted_is_nothing_requested() -> None:
    assert Requests().plan([]) == []
    assert Requests().plan([(5, 5), (9, 9)]) == []


@given(SPANS, st.none() | st.integers(0, 500), st.integers(1, 700))
def test_requests_share_what_is_wanted(wanted: list[Span], max_gap: int | None, most: int) -> None:
    requests = Requests(max_gap_bytes=max_gap, max_request_bytes=most).plan(wanted)
    for share, request in zip(shares(wanted, requests), requests, strict=True):
        assert bytes_of(share) == bytes_of(wanted) & bytes_of([request])


@given(SPANS, st.integers(0, 3000), st.integers(0, 2000))
def test_taking_a_range_away(spans: list[Span], start: int, length: int) -> None:
    left = without(spans, start, start + length)
    assert bytes_of(left) == bytes_of(spans) - set(range(start, start + length))
    assert all(first < last for first, last in left)
