"""Loaders that refuse a table, and the paths of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from numbered_tables import ids_in, loader_of

from headrace.errors import HeadraceError


def local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def refused(kind: type[HeadraceError], *said: str, **options: Any) -> str:
    """The message of an error of that kind, while a loader is made or while it reads."""
    name, config = options.pop("name", "tests.db.t"), options.pop("config")
    with pytest.raises(kind) as caught:
        ids_in(loader_of(name, config, **options)[0])
    for part in said:
        assert part in str(caught.value)
    return str(caught.value)
