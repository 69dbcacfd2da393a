"""The libraries that are compared with: their environments, and their shares of the data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["PEERS", "Peer", "peer_of", "share_of", "strength_share_of"]

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Peer:
    """One library."""

    module: str
    """the module of its arms, which is the first part of their names"""
    title: str
    distribution: str
    environment: str
    same_ground: bool = True
    """whether it uses the same numpy and pyarrow"""
    stores: tuple[str, ...] = ()
    """other distributions that its arms read with"""

    @property
    def python(self) -> Path:
        """The interpreter in which it is installed."""
        return ROOT / self.environment / "bin" / "python"


PEERS = (
    Peer("tdu", "torch-dataloader-utils", "torch-dataloader-utils", ".venv-peers"),
    Peer(
        "tdu_s3",
        "torch-dataloader-utils with s3fs",
        "torch-dataloader-utils",
        ".venv-peers",
        stores=("s3fs",),
    ),
    Peer("hf_datasets", "Hugging Face datasets", "datasets", ".venv-peers-datasets"),
    Peer("lance", "lance.torch", "pylance", ".venv-peers-lance"),
    Peer("litdata", "litdata", "litdata", ".venv-peers-litdata"),
    Peer("ray_data", "Ray Data", "ray", ".venv-peers-ray"),
    Peer("webshart_tar", "webshart", "webshart", ".venv-peers-tar"),
    Peer("webdataset_tar", "webdataset", "webdataset", ".venv-peers-tar"),
    Peer("paimon", "pypaimon", "pypaimon", ".venv-paimon", same_ground=False),
    Peer(
        "mosaic",
        "Mosaic streaming",
        "mosaicml-streaming",
        ".venv-peers-mosaic",
        same_ground=False,
    ),
)
_SHARES = {
    "hf_datasets.shuffle": 0.125,
    "hf_datasets.resume-shuffled": 0.5,
    "lance.shuffle-rows": 0.05,
    "litdata.": 0.25,
    "mosaic.": 0.05,
    "tdu_s3.startup": 0.2,
}
"""by the beginning of an arm's name: rates are per row, so the slowest arms read less"""
_EVEN_SHUFFLES = ("lance.shuffle-rows", "mosaic.")
"""all orders of all rows are equally likely, for any number of rows"""
_BY_MODULE = {peer.module: peer for peer in PEERS}


def peer_of(arm: str) -> Peer | None:
    """Return the library whose arm this is; None for an arm of this project or a floor."""
    return _BY_MODULE.get(arm.partition(".")[0])


def share_of(arm: str) -> float:
    """Return the share of the data that this arm reads."""
    return next((share for start, share in _SHARES.items() if arm.startswith(start)), 1.0)


def strength_share_of(arm: str) -> float:
    """Return the share for measuring its shuffle, which may depend on the size of the data."""
    return share_of(arm) if arm.startswith(_EVEN_SHUFFLES) else 1.0
