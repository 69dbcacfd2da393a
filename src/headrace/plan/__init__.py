"""Decides which lane reads which rows in which order, from metadata, without I/O or torch."""

from headrace.plan._chunks import BYTES, ROWS, Chunks, cut_chunks, decode_factor
from headrace.plan._lanes import (
    Grouping,
    Lane,
    Piece,
    Plan,
    Reading,
    RowCost,
    lane_pieces,
    no_groups,
    window_pieces,
)
from headrace.plan._resume import Planner, known_batches
from headrace.plan._state import (
    DONE,
    END,
    Fingerprint,
    RankShare,
    State,
    WindowRow,
    merge_states,
)
from headrace.plan._strategies import (
    DEFAULT_SPLIT_BYTES,
    EvenBatchesSplitStrategy,
    Order,
    RoundRobinSplitStrategy,
    TargetSizeSplitStrategy,
    plan_lanes,
)
from headrace.plan.permutations import ROW_ORDER, permutation, row_keys, stable_order

__all__ = [
    "BYTES",
    "DEFAULT_SPLIT_BYTES",
    "DONE",
    "END",
    "ROWS",
    "ROW_ORDER",
    "Chunks",
    "EvenBatchesSplitStrategy",
    "Fingerprint",
    "Grouping",
    "Lane",
    "Order",
    "Piece",
    "Plan",
    "Planner",
    "RankShare",
    "Reading",
    "RoundRobinSplitStrategy",
    "RowCost",
    "State",
    "TargetSizeSplitStrategy",
    "WindowRow",
    "cut_chunks",
    "decode_factor",
    "known_batches",
    "lane_pieces",
    "merge_states",
    "no_groups",
    "permutation",
    "plan_lanes",
    "row_keys",
    "stable_order",
    "window_pieces",
]
