"""Decides which rows are read by which lane in which order: from metadata, without I/O or torch."""

from headrace.plan._chunks import BYTES, ROWS, WHOLE, Chunks, cut_chunks, decode_factor
from headrace.plan._lanes import Grouping, Lane, Plan, Span
from headrace.plan._pieces import Piece, Reading, RowCost, lane_pieces, no_groups, window_pieces
from headrace.plan._rest import plan_the_rest, windows_begun
from headrace.plan._resume import Planner, known_batches
from headrace.plan._sharing import even_out, first_in_turn, share_last_round
from headrace.plan._state import DONE, END, Data, Fingerprint, Loose, RankShare, State, merge_states
from headrace.plan._strategies import (
    EvenBatchesSplitStrategy,
    Order,
    RoundRobinSplitStrategy,
    TargetSizeSplitStrategy,
    plan_lanes,
)
from headrace.plan.permutations import ROW_ORDER, permutation, row_keys, stable_order

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
