"""Lance, in a process of its own for all tests that only need somebody to use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lance_elsewhere import Elsewhere


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[Elsewhere]:
    process = Elsewhere()
    yield process
    process.stop()
