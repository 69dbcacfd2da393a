"""Decides who reads what in which order, from metadata alone: no I/O, no torch."""

from headrace.plan.chunks import BYTES, ROWS, WHOLE, Chunks, cut_chunks
from headrace.plan.decoding import decode_factor
from headrace.plan.even import EvenPlan, batches_in, even_out, first_in_turn
from headrace.plan.lane import Grouping, Lane, Span
from headrace.plan.lanes import LanePlan
from headrace.plan.order import ROW_ORDER, permutation, taking_turns
from headrace.plan.resize import plan_the_rest, windows_begun
from headrace.plan.sizes import parse_bytes
from headrace.plan.strategies import (
    EvenBatchesSplitStrategy,
    RoundRobinSplitStrategy,
    TargetSizeSplitStrategy,
    plan_lanes,
    same_in_every_epoch,
)
from headrace.plan.windows import (
    Piece,
    Reading,
    RowCost,
    lane_pieces,
    no_groups,
    window_pieces,
)

__all__ = [
    "BYTES",
    "ROWS",
    "ROW_ORDER",
    "WHOLE",
    "Chunks",
    "EvenBatchesSplitStrategy",
    "EvenPlan",
    "Grouping",
    "Lane",
    "LanePlan",
    "Piece",
    "Reading",
    "RoundRobinSplitStrategy",
    "RowCost",
    "Span",
    "TargetSizeSplitStrategy",
    "batches_in",
    "cut_chunks",
    "decode_factor",
    "even_out",
    "first_in_turn",
    "lane_pieces",
    "no_groups",
    "parse_bytes",
    "permutation",
    "plan_lanes",
    "plan_the_rest",
    "same_in_every_epoch",
    "taking_turns",
    "window_pieces",
    "windows_begun",
]
