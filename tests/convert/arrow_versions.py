"""What the pyarrow of this environment has."""

from __future__ import annotations

import pyarrow as pa

HAS_VIEWS = int(pa.__version__.partition(".")[0]) >= 18
"""views are types before, and nothing can be done with them; bool8 and uuid are none"""
