"""Paimon tables for tests.

pypaimon wants an older pyarrow than the rest of the tests: these run in an environment of their
own (`make test` makes it), and are left out where pypaimon is not installed.
"""

from __future__ import annotations

import itertools
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from paimon_tables import Warehouse
    from servers.s3 import S3Server

NUMBERS = itertools.count(1)

collect_ignore_glob = [] if find_spec("pypaimon") else ["test_*.py", "paimon_*.py"]


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    """Tables on local files, with a database "db"."""
    from paimon_tables import Warehouse

    return Warehouse(str(tmp_path / "warehouse"))


@pytest.fixture
def s3_warehouse(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """Tables in a bucket of their own."""
    from paimon_tables import Warehouse, s3_options

    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # pypaimon sets it, for good
    bucket = s3_server.make_bucket(f"paimon-{next(NUMBERS)}")
    return Warehouse(f"s3://{bucket}/warehouse", **s3_options(s3_server))
