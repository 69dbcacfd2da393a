"""Paimon tables for tests.

pypaimon wants an older pyarrow than the rest of the tests: these run in an environment of their
own (`make test` makes it), and are left out where pypaimon is not installed.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from paimon_tables import Warehouse

collect_ignore_glob = [] if find_spec("pypaimon") else ["test_*.py", "paimon_*.py"]


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    """Tables on local files, with a database "db"."""
    from paimon_tables import Warehouse

    return Warehouse(str(tmp_path / "warehouse"))
