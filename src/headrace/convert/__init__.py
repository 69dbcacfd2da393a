"""Arrow blocks to torch, numpy, Arrow or Python batches: converted once, cut as views."""

from headrace.convert.blocks import Block
from headrace.convert.converter import Converter

__all__ = ["Block", "Converter"]
