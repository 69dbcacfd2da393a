"""Functions that give the key of the moment, in this process or in a worker."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any


class KeyFile:
    """The key that is good now, and who asked for it."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.write(key)
        (folder / "calls").touch()

    def write(self, key: str) -> None:
        aside = self.folder / "new"
        aside.write_text(key)
        aside.replace(self.folder / "key")

    def calls(self) -> list[int]:
        """The process of each call, in their order."""
        return [int(line) for line in (self.folder / "calls").read_text().split()]

    def options(self, **more: Any) -> partial[dict[str, Any]]:
        """A function that returns whole options."""
        return partial(current_options, str(self.folder), more)

    def token(self) -> partial[dict[str, str]]:
        """A function that returns the key as a token."""
        return partial(current_token, str(self.folder))


def current_key(folder: str, pause_s: float = 0.0) -> str:
    with open(f"{folder}/calls", "a") as calls:
        calls.write(f"{os.getpid()}\n")
    time.sleep(pause_s)
    return Path(folder, "key").read_text()


def current_token(folder: str) -> dict[str, str]:
    return {"token": current_key(folder)}


def current_options(folder: str, more: dict[str, Any]) -> dict[str, Any]:
    more = dict(more)
    lasts_s = more.pop("lasts_s", None)
    if lasts_s is not None:
        more["expires_at"] = time.time() + lasts_s
    key = current_key(folder, more.pop("pause_s", 0.0))
    return {"key": key, "secret": f"secret of {key}", **more}
