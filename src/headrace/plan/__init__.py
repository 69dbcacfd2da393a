"""Decides who reads what in which order, from metadata alone: no I/O, no torch."""

from headrace.plan.chunks import BYTES, ROWS, WHOLE, Chunks, cut_chunks, decode_factor
from headrace.plan.even import (
    EvenPlan,
    batches_in,
    even_out,
    first_in_turn,
    share_last_round,
)
from headrace.plan.lanes import Grouping, Lane, LanePlan, Span
from headrace.plan.permutations import ROW_ORDER, permutation, row_keys, stable_order
from headrace.plan.pieces import (
    Piece,
    Reading,
    RowCost,
    lane_pieces,
    no_groups,
    window_pieces,
)
from headrace.plan.resize import plan_the_rest, windows_begun
from headrace.plan.state import (
    DONE,
    END,
    Fingerprint,
    Loose,
    Place,
    Readers,
    Share,
    Stage,
    State,
    check_state,
    merge_states,
)
from headrace.plan.strategies import (
    EvenBatchesSplitStrategy,
    RoundRobinSplitStrategy,
    TargetSizeSplitStrategy,
    describe_strategy,
    plan_lanes,
    same_in_every_epoch,
)

__all__ = [
    "BYTES",
    "DONE",
    "END",
    "ROWS",
    "ROW_ORDER",
    "WHOLE",
    "Chunks",
    "EvenBatchesSplitStrategy",
    "EvenPlan",
    "Fingerprint",
    "Grouping",
    "Lane",
    "LanePlan",
    "Loose",
    "Piece",
    "Place",
    "Readers",
    "Reading",
    "RoundRobinSplitStrategy",
    "RowCost",
    "Share",
    "Span",
    "Stage",
    "State",
    "TargetSizeSplitStrategy",
    "batches_in",
    "check_state",
    "cut_chunks",
    "decode_factor",
    "describe_strategy",
    "even_out",
    "first_in_turn",
    "lane_pieces",
    "merge_states",
    "no_groups",
    "permutation",
    "plan_lanes",
    "plan_the_rest",
    "row_keys",
    "same_in_every_epoch",
    "share_last_round",
    "stable_order",
    "window_pieces",
    "windows_begun",
]
