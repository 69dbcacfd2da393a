"""Arrow blocks to torch, numpy, Arrow or Python batches: converted once, cut as views."""

from headrace.convert.columns import Block, concat, gather
from headrace.convert.converter import Converter
from headrace.convert.stacks import NUMERIC

__all__ = ["NUMERIC", "Block", "Converter", "concat", "gather"]
