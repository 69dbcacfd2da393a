"""What several tests of stores need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fsspec
import pytest


@pytest.fixture
def memory() -> Iterator[Any]:
    """The filesystem in memory, empty before and after."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]
