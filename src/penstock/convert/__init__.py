"""Arrow blocks to torch, numpy, Arrow or Python batches: converted once, cut as views."""

from penstock.convert.blocks import Block
from penstock.convert.converter import Converter

__all__ = ["Block", "Converter"]
