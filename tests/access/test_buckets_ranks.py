"""Two ranks take batches of buckets in step, and frameworks do not divide them again."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from rank_jobs import results_of_ranks

from headrace.access import BucketBatchSampler

SCRIPT = Path(__file__).parent / "rank_scripts" / "bucket_batches_of_ranks.py"
BUCKETS = [0] * 40 + [1] * 13 + [2] * 6 + [3]


def test_two_ranks_take_batches_of_buckets(tmp_path: Path) -> None:
    ranks = results_of_ranks(SCRIPT, tmp_path)
    every_sample = list(range(len(BUCKETS)))
    for rank, result in enumerate(ranks):
        mine = BucketBatchSampler(BUCKETS, 5, rank=rank, world_size=2)
        expected = [list(mine) for _ in range(2)]
        assert result["in step"]["seen"] == expected
        assert result["lightning"] == expected
        assert "Accelerate distributes batches itself" in result["accelerate of ranks"]
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

    alone = BucketBatchSampler(BUCKETS, 5)
    alone.load_state_dict(ranks[0]["in step"]["state"])
    begun = chain(*(rank["in step"]["begun"] for rank in ranks))
    assert sorted(chain(*begun, *alone)) == every_sample
