"""A Paimon table in shuffled chunks of 1,000 rows: through the library, and through pypaimon."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from data import Data
from paimon_tables import catalog_options, load, make_tables
from torch.utils.data import DataLoader

import headrace.sources.paimon.table  # noqa: F401  (or the first table would be timed with imports)
from arms.registry import Arm, register
from arms.touch import count_rows
from headrace import PaimonDataset

CHUNK_ROWS = 1000
BATCH_ROWS = 1024
PEER_ROWS = 50_000
"""number of rows that the peer reads at its constant and low rate"""


def _ours(data: Data) -> Iterator[int]:
    loader, _ = PaimonDataset.create_dataloader(
        "db.chunked",
        catalog_options=catalog_options(data),
        chunk_size=CHUNK_ROWS,
        batch_size=BATCH_ROWS,
        shuffle=True,
        num_workers=0,
    )
    yield from count_rows(loader, columns=21)


def _theirs(data: Data) -> Iterator[int]:
    builder = load(data, "chunked").new_read_builder()
    scan = builder.new_scan().with_chunk_shuffle(7, CHUNK_ROWS)
    dataset = builder.new_read().to_torch(
        scan.plan().splits(), streaming=True, batch_size=BATCH_ROWS, batch_format="torch"
    )
    batches = islice(DataLoader(dataset, batch_size=None), PEER_ROWS // BATCH_ROWS)
    yield from count_rows(batches, columns=21)


for _name, _run in (("chunks", _ours), ("to-torch", _theirs)):
    register(Arm(f"paimon.{_name}", None, _run, beforehand=make_tables))
