"""Two ranks over batches of buckets: in step, and not shared out a second time by frameworks."""

from __future__ import annotations

import json
import os
from itertools import chain
from pathlib import Path
from typing import Any

from rank_jobs import run_ranks
from servers.processes import free_port

from penstock.access import BucketBatchSampler

SCRIPT = Path(__file__).parent / "rank_scripts" / "bucket_batches_of_ranks.py"
SOURCES = Path(__file__).parents[2] / "src"
BUCKETS = [0] * 40 + [1] * 13 + [2] * 6 + [3]


def seen_by_ranks(folder: Path) -> list[Any]:
    shared = {
        **os.environ,
        "PYTHONPATH": str(SOURCES),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "ACCELERATE_USE_CPU": "1",
    }
    ranks = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    run_ranks([[str(SCRIPT), str(folder)]] * 2, ranks)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def test_two_ranks_take_batches_of_buckets(tmp_path: Path) -> None:
    ranks = seen_by_ranks(tmp_path)
    every_sample = list(range(len(BUCKETS)))
    for rank, seen in enumerate(ranks):
        mine = BucketBatchSampler(BUCKETS, 5, rank=rank, world_size=2)
        expected = [list(mine) for _ in range(2)]
        assert seen["in step"]["seen"] == expected
        assert seen["lightning"] == expected
        assert "Accelerate shares out batches itself" in seen["accelerate of ranks"]
    for epoch in range(2):
        parts = [rank["in step"]["seen"][epoch] for rank in ranks]
        assert len(parts[0]) == len(parts[1])
        assert sorted(chain(*chain(*parts))) == every_sample
        shared = [rank["accelerate"][epoch] for rank in ranks]
        assert len(shared[0]) == len(shared[1])
        assert set(chain(*chain(*shared))) == set(every_sample)
        for batch in chain(*shared):
            assert len({BUCKETS[sample] for sample in batch}) == 1
    assert ranks[0]["accelerate"][0] != ranks[0]["accelerate"][1]

    assert ranks[0]["in step"]["state"] == ranks[1]["in step"]["state"]
    alone = BucketBatchSampler(BUCKETS, 5)
    alone.load_state_dict(ranks[0]["in step"]["state"])
    begun = chain(*(rank["in step"]["begun"] for rank in ranks))
    assert sorted(chain(*begun, *alone)) == every_sample
