"""Scripts and data that the tests of all engines share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

collect_ignore = ["scripts"]
sys.path.insert(0, str(Path(__file__).parent / "scripts"))


@pytest.fixture(scope="session")
def uneven_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write rows that two ranks cannot share evenly in batches of 32."""
    from common_ground import write_rows

    folder = tmp_path_factory.mktemp("uneven")
    write_rows(folder)
    return folder
