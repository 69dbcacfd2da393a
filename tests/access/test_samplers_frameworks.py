"""Frameworks that divide samples among ranks do not divide them a second time."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from rank_jobs import results_of_ranks
from torch.utils.data import DistributedSampler

from headrace.access import GlobalShuffleSampler, ShardShuffleSampler

SCRIPT = Path(__file__).parent / "rank_scripts" / "samplers_of_ranks.py"
ROWS = 60


def test_two_ranks_see_every_row_once(tmp_path: Path) -> None:
    first, second = results_of_ranks(SCRIPT, tmp_path)
    every_row = list(range(ROWS))
    for name in ("plain", "global of a rank", "shards of a rank"):
        for epoch in range(2):
            parts = [rank["lightning"][name][epoch] for rank in (first, second)]
            assert list(map(len, parts)) == [30, 30], name
            assert sorted(parts[0] + parts[1]) == every_row, name
    for epoch in range(2):
        parts = [rank["accelerate"]["plain"][epoch] for rank in (first, second)]
        assert list(map(len, parts)) == [30, 30]
        assert sorted(parts[0] + parts[1]) == every_row
    for name in ("global of a rank", "shards of a rank"):
        refusal = second["accelerate"][name]
        assert "rank 1 of 2, but Accelerate distributes batches itself" in refusal


@pytest.mark.parametrize("kind", ["global", "shards"])
def test_only_samplers_of_several_ranks_are_distributed(kind: str) -> None:
    def make(*ranks: int) -> GlobalShuffleSampler | ShardShuffleSampler:
        if kind == "global":
            return GlobalShuffleSampler(ROWS, 3, *ranks)
        return ShardShuffleSampler([40, 20], 3, *ranks)

    assert not isinstance(make(), DistributedSampler)
    assert not hasattr(make(), "generator")
    sampler = make(1, 2)
    assert isinstance(sampler, DistributedSampler)
    assert isinstance(sampler, GlobalShuffleSampler | ShardShuffleSampler)
    sampler.seek(10)
    sent = pickle.loads(pickle.dumps(sampler))
    assert isinstance(sent, DistributedSampler)
    assert sent.state_dict() == sampler.state_dict()
    assert list(sent) == list(sampler) == sampler.indices(10, 30, epoch=0).tolist()
