"""Decides which rows are read by which lane in which order: from metadata, without I/O or torch."""

from headrace.plan.chunks import BYTES, ROWS, WHOLE, Chunks, cut_chunks, decode_factor
from headrace.plan.lanes import Grouping, Lane, Plan, Span
from headrace.plan.permutations import ROW_ORDER, permutation, row_keys, stable_order
from headrace.plan.pieces import Piece, Reading, RowCost, lane_pieces, no_groups, window_pieces
from headrace.plan.rest import plan_the_rest, windows_begun
from headrace.plan.resume import Planner, known_batches
from headrace.plan.sharing import even_out, first_in_turn, share_last_round
from headrace.plan.state import DONE, END, Data, Fingerprint, Loose, RankShare, State, merge_states
from headrace.plan.strategies import (
    EvenBatchesSplitStrategy,
    Order,
    RoundRobinSplitStrategy,
    TargetSizeSplitStrategy,
    plan_lanes,
)

__all__ = [
    "BYTES",
    "DONE",
    "END",
    "ROWS",
    "ROW_ORDER",
    "WHOLE",
    "Chunks",
    "Data",
    "EvenBatchesSplitStrategy",
    "Fingerprint",
    "Grouping",
    "Lane",
    "Loose",
    "Order",
    "Piece",
    "Plan",
    "Planner",
    "RankShare",
    "Reading",
    "RoundRobinSplitStrategy",
    "RowCost",
    "Span",
    "State",
    "TargetSizeSplitStrategy",
    "cut_chunks",
    "decode_factor",
    "even_out",
    "first_in_turn",
    "known_batches",
    "lane_pieces",
    "merge_states",
    "no_groups",
    "permutation",
    "plan_lanes",
    "plan_the_rest",
    "row_keys",
    "share_last_round",
    "stable_order",
    "window_pieces",
    "windows_begun",
]
