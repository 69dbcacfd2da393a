"""What the pyarrow of this environment has."""

from __future__ import annotations

import pyarrow as pa

HAS_VIEWS = int(pa.__version__.partition(".")[0]) >= 18
"""older versions have views only as types that cannot be used, and neither bool8 nor uuid"""
