"""Convert Arrow blocks to torch, numpy, Arrow or Python batches: once a block, cut as views."""

from headrace.convert._converter import Converter
from headrace.convert._stacks import NUMERIC
from headrace.convert.columns import Block, concat

__all__ = ["NUMERIC", "Block", "Converter", "concat"]
