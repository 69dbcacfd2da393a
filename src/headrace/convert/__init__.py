"""Arrow blocks to torch, numpy, Arrow or Python batches: converted once, cut as views."""

from headrace.convert.columns import Block, concat, gather
from headrace.convert.converter import Converter

__all__ = ["Block", "Converter", "concat", "gather"]
