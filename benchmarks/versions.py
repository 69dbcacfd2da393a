"""Versions of the libraries that the two sides of a comparison use."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import distributions

from peers import Peer

__all__ = ["versions"]

_GROUND = ("torch", "pyarrow", "numpy", "pandas")
"""libraries that both sides share; pyarrow imports pandas where it is installed"""
_BESIDE = ("array_record", "pylance", "pillow")
"""libraries that this one reads with where they are installed, and is then compared with"""
_ASK = (
    "import json, sys; from importlib.metadata import distributions;"
    "print(json.dumps({d.name: d.version for d in distributions() if d.name in sys.argv[1:]}))"
)


def versions(peers: Iterable[Peer]) -> dict[str, str]:
    """Return the versions of both sides; exit if those of shared libraries differ."""
    ours = {one.name: one.version for one in distributions() if one.name in _GROUND}
    beside = {one.name: one.version for one in distributions() if one.name in _BESIDE}
    found = {"Python": platform.python_version(), **ours, **beside}
    for peer in peers:
        asked = subprocess.run(
            [str(peer.python), "-c", _ASK, peer.distribution, *peer.stores, *_GROUND],
            capture_output=True,
            text=True,
            check=True,
        )
        theirs: dict[str, str] = json.loads(asked.stdout)
        found |= {name: theirs.pop(name) for name in (peer.distribution, *peer.stores)}
        differing = {name: theirs[name] for name in theirs if theirs[name] != ours.get(name)}
        if "torch" in differing or (differing and peer.same_ground):
            raise SystemExit(f"versions differ: {ours} here, {theirs} for {peer.title}")
    return found
