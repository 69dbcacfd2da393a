"""Decides who reads what in which order, from metadata alone: no I/O, no torch."""

from penstock.plan.chunks import BYTES, ROWS, WHOLE, Chunks, cut_chunks
from penstock.plan.decoding import decode_factor
from penstock.plan.lanes import LanePlan
from penstock.plan.order import ROW_ORDER, permutation
from penstock.plan.sizes import parse_bytes
from penstock.plan.strategies import (
    EvenBatchesSplitStrategy,
    RoundRobinSplitStrategy,
    TargetSizeSplitStrategy,
    plan_lanes,
)
from penstock.plan.windows import Piece, RowCost, lane_pieces, rows_left

__all__ = [
    "BYTES",
    "ROWS",
    "ROW_ORDER",
    "WHOLE",
    "Chunks",
    "EvenBatchesSplitStrategy",
    "LanePlan",
    "Piece",
    "RoundRobinSplitStrategy",
    "RowCost",
    "TargetSizeSplitStrategy",
    "cut_chunks",
    "decode_factor",
    "lane_pieces",
    "parse_bytes",
    "permutation",
    "plan_lanes",
    "rows_left",
]
