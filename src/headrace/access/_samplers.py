"""Samplers whose order is arithmetic: any sample of any epoch is computed on request.

A sampler has one lane for each rank: at each step every rank takes the next sample (or batch) of
the order of an epoch. Its states have the same form as states of loaders, and hold only a number of
steps; see ``headrace.plan._state``.
"""

from __future__ import annotations

import hashlib
import operator
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Self, TypeVar

import numpy as np
from torch.utils.data import DistributedSampler, Sampler

from headrace.access.rows._dataset import RowDataset
from headrace.errors import OptionError, StateMismatchError
from headrace.model import Cursor, Int64Array
from headrace.options import checked_keywords, whole_number
from headrace.plan import END, Fingerprint, RankShare, State
from headrace.plan.permutations import IndexPermutation
from headrace.sources.backend import Backend

T_co = TypeVar("T_co", covariant=True)


class ResumableSampler(Sampler[T_co]):
    """Gives the samples, or the batches, that one of several ranks takes in an epoch.

    When an iteration has ended, the next epoch follows; ``set_epoch`` chooses one. When an
    iteration was interrupted, its epoch begins again, even if it had continued from a state.

    Args:
        seed: The seed of the order.
        rank: The rank of this process.
        world_size: Number of ranks.
        epoch: The epoch of the first iteration.
        even: How ranks get the same number of steps; see ``headrace.plan.RankShare``.
    """

    _dealt_in_turn = True
    """True if ranks take turns, so that any number of ranks can continue from any step."""
    next_start: State
    """State in which the next iteration begins."""
    _began: State
    """State in which the last iteration began; each iteration has a different object."""
    _taken: int | None
    """Number of steps that this iteration has taken; None if it has not begun, or has ended."""

    def __init__(self, seed: int, rank: int, world_size: int, epoch: int, even: str) -> None:
        self.seed = whole_number("seed", seed)
        self.world_size = whole_number("world_size", world_size, 1)
        self.num_replicas = self.world_size  # as torch calls it
        self.rank = whole_number("rank", rank, 0)
        if self.rank >= self.world_size:
            raise OptionError(f"rank {rank} of {world_size}: ranks count from 0")
        share = RankShare(0, self.world_size, even)
        self._origin = State(0, 1, self.world_size, (share,), self.rank)
        self._move(self.start(whole_number("epoch", epoch, 0)))

    # --- the order

    @abstractmethod
    def _describe(self) -> str:
        """Return everything except the seed that decides the order, for fingerprints."""

    @abstractmethod
    def _steps_from(self, state: State) -> int:
        """Return the number of steps of this rank, counted from the last share of a state."""

    @abstractmethod
    def _is_over(self, state: State) -> bool:
        """Return True if the epoch has no samples left for any rank after a state."""

    @abstractmethod
    def _computed(self, state: State, start: int, stop: int) -> Sequence[T_co]:
        """Return the samples of this rank at some steps, counted from the last share of a state."""

    @property
    def _at_once(self) -> int:
        """Number of steps whose samples are computed together, to be handed out one by one."""
        return 1 << 13

    def __len__(self) -> int:
        """Return the number of steps of this rank in a whole epoch."""
        return self._steps_from(self.start(0))

    def __iter__(self) -> Iterator[T_co]:
        # A generator: loaders of torch may call ``iter`` twice, and use only the second one.
        began = self._began = replace(self.next_start)
        self.next_start, self._taken = self.start(began.epoch), 0
        first, behind = began.steps[0], self._steps_from(began)
        for start in range(first, behind, self._at_once):
            stop = min(start + self._at_once, behind)
            for taken, found in enumerate(self._computed(began, start, stop), start - first + 1):
                if self._began is began:
                    self._taken = taken
                yield found
        if self._began is began:
            self.next_start, self._taken = self.start(began.epoch + 1), None

    # --- epochs and states

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration; a loader that reads ahead changes it early."""
        return self.next_start.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. If it is the current one, the position stays."""
        epoch = whole_number("epoch", epoch, 0)
        if epoch != self.epoch:
            self._move(self.start(epoch))
        elif self._taken is None:  # the next state does not belong to the last iteration
            self._began = self.next_start

    def start(self, epoch: int) -> State:
        """Return the state before the first step of an epoch."""
        return replace(self._origin, epoch=epoch)

    def _seek(self, steps: int, epoch: int | None) -> None:
        start = self.start(self._epoch_or(epoch))
        self._move(self.or_next_epoch(self.after(start, steps)))

    def _position(self, steps: int | None) -> State:
        """Return the state after ``steps`` steps of the last iteration; None for all its steps."""
        if steps is None:
            return self.next_start if self._taken is None else self.after(self._began, self._taken)
        return self.after(self._began, steps)

    def after(self, state: State, steps: int) -> State:
        """Return the state after ``steps`` more steps, which may be the end of the epoch."""
        total = state.steps[0] + steps
        return replace(state, steps=(total,), cursors=(Cursor(0, total),))

    def remaining(self, state: State) -> int:
        """Return the number of steps that this rank has left after a state of this sampler."""
        return max(self._steps_from(state) - state.steps[0], 0)

    def as_json(self, state: State, fingerprint: Fingerprint | None = None) -> dict[str, Any]:
        """Return a state of this sampler as JSON; after the last step it is the state of the next
        epoch.

        Args:
            state: The state.
            fingerprint: The data and order of the state, if it is more than the order of this
                sampler.
        """
        return self.or_next_epoch(state).as_json(fingerprint or self.fingerprint)

    def load_state_dict(
        self, state: Mapping[str, Any], fingerprint: Fingerprint | None = None
    ) -> None:
        """Let only the next iteration continue from a state of any rank in step with this one.

        An iteration that only takes a first batch counts as well: load the state again after it.
        The state of all ranks (``merge_states``) can be loaded, too.

        Args:
            state: The state.
            fingerprint: As for ``as_json``.

        Raises:
            StateMismatchError: The state belongs to other data or to another order, or these ranks
                cannot continue from it.
        """
        read = State.from_json(state)
        (fingerprint or self.fingerprint).check(read)
        lanes, evenly = self.world_size, self._dealt_in_turn
        mine = read.goes_on(self._origin, lanes, evenly=evenly, in_step=False)
        if mine is None:
            raise StateMismatchError(
                f"the state is of {read.ranks} ranks, and {self.world_size} cannot go on "
                f"from it here ({self._describe()}): if samples are dealt by shards, or ranks took "
                "different numbers of steps, the number of ranks must stay the same; use "
                "that number, or begin the next epoch"
            )
        if mine.cursor(self.rank)[0] == END:  # this rank was at its end, and others were not
            self._move(self.after(mine, self.remaining(mine)))
        else:
            self._move(self.or_next_epoch(self.after(mine, 0)))

    @property
    def fingerprint(self) -> Fingerprint:
        """Digest of the order that a state of this sampler belongs to."""
        return Fingerprint("", "", self._describe(), self.seed)

    def _epoch_or(self, epoch: int | None) -> int:
        return self.epoch if epoch is None else whole_number("epoch", epoch, 0)

    def or_next_epoch(self, state: State) -> State:
        """Return a state, or the start of the next epoch if the state is after the last step."""
        return self.start(state.epoch + 1) if self._is_over(state) else state

    def _move(self, state: State) -> None:
        self.next_start = self._began = state
        self._taken = None

    # --- frameworks

    @property
    def generator(self) -> None:
        """Stop Accelerate from sharing samples that are already shared.

        It looks for this attribute in the samplers whose batches it is about to share.
        """
        if self.world_size == 1:
            raise AttributeError("generator")
        raise OptionError(
            f"this sampler belongs to rank {self.rank} of {self.world_size}, but Accelerate "
            "distributes batches itself: give it a sampler with rank=0 and world_size=1"
        )


class ShuffleSampler(ResumableSampler[int]):
    """Gives every row once an epoch, in an order that all ranks share."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Make a DistributedSampler if there are several ranks.

        Lightning replaces a sampler of any other class by one that shares its samples.
        """
        world_size = args[3] if len(args) > 3 else options.get("world_size", 1)
        return super().__new__(cls if world_size == 1 else _DISTRIBUTED.get(cls, cls))

    def __init__(
        self,
        n: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        epoch: int = 0,
        even: str | bool = "drop",
    ) -> None:
        self.num_rows = whole_number("n", n, 0)
        if even not in ("drop", "pad") and even is not False:
            raise OptionError(f'even must be "drop", "pad" or False, not {even!r}')
        self.even = even
        super().__init__(seed, rank, world_size, epoch, even or "")
        if self.num_rows < self.world_size > 1:
            raise OptionError(f"{n} rows cannot be shared by {world_size} ranks")

    @abstractmethod
    def _order(self, places: Int64Array, epoch: int) -> Int64Array:
        """Return the rows at these positions of the order that all ranks share."""

    @abstractmethod
    def _places(self, start: int, stop: int, taken: int) -> Int64Array:
        """Return the positions of samples of this rank, if ranks share those after ``taken``."""

    def indices(self, start: int, stop: int, *, epoch: int | None = None) -> Int64Array:
        """Return the samples ``start`` to ``stop`` of this rank in this or any other epoch."""
        start, stop = operator.index(start), operator.index(stop)
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"samples {start} to {stop} of {len(self)}")
        return self._rows(start, stop, self._epoch_or(epoch), 0)

    def index(self, k: int, *, epoch: int | None = None) -> int:
        """Return sample ``k`` of this rank in an epoch."""
        k = operator.index(k)
        return int(self.indices(k, k + 1, epoch=epoch)[0])

    def _computed(self, state: State, start: int, stop: int) -> list[int]:
        rows: list[int] = self._rows(start, stop, state.epoch, state.shares[-1].taken).tolist()
        return rows

    def _rows(self, start: int, stop: int, epoch: int, taken: int) -> Int64Array:
        places = self._places(start, stop, taken)
        if self.even == "pad" and len(places):
            places %= self.num_rows
        return self._order(places, epoch)

    def _is_over(self, state: State) -> bool:
        least = self.world_size if self.even == "drop" else 1
        return state.taken > 0 and self.num_rows - state.taken < least

    def seek(self, samples: int, *, epoch: int | None = None) -> None:
        """Let the next iteration, once, begin after ``samples`` samples of this rank.

        A loader with workers requests samples long before it hands them out. With such a loader,
        pass the number that the training loop has taken, which is steps × batch_size.
        """
        self._seek(whole_number("samples", samples, 0), epoch)

    def state_dict(self, samples: int | None = None) -> dict[str, Any]:
        """Return the position as JSON. After the last sample it is the start of the next epoch.

        Args:
            samples: Number of samples of the last iteration that the training loop has taken, which
                is steps × batch_size. By default, all samples that were requested count, also those
                that a loader has read ahead. torchdata's StatefulDataLoader counts by itself.
        """
        if samples is not None:
            samples = whole_number("samples", samples, 0)
        return self.as_json(self._position(samples))


@checked_keywords
class GlobalShuffleSampler(ShuffleSampler):
    """Gives every row once an epoch, in a random order of all rows, in constant memory.

    Rank r of R takes the positions r, r + R, … of the order of an epoch, so that all ranks together
    go through it in step. With ``even``, all ranks have the same number of samples: the last few
    rows are left out ("drop") or the first ones are repeated ("pad"); with False the numbers may
    differ. Any number of ranks can continue from a state.
    """

    def _describe(self) -> str:
        return f"global shuffle of {self.num_rows} rows"

    def _order(self, places: Int64Array, epoch: int) -> Int64Array:
        return kept_permutation(self.num_rows, self.seed, epoch).at(places)

    def _places(self, start: int, stop: int, taken: int) -> Int64Array:
        places = np.arange(start, stop, dtype=np.int64)
        places *= self.world_size
        places += taken + self.rank
        return places

    def _steps_from(self, state: State) -> int:
        left = max(self.num_rows - state.shares[-1].taken, 0)
        if self.even is False:
            left += self.world_size - 1 - self.rank
        elif self.even == "pad":
            left += self.world_size - 1
        return left // self.world_size


@checked_keywords
class ShardShuffleSampler(ShuffleSampler):
    """Gives all shards in a random order, and the rows of each shard in another, every epoch.

    For data whose shards are expensive to open or to hold. ``shards`` is a backend, all rows of
    one, or the number of rows of each shard. Rank r of R takes the r-th of R equal runs of this
    order, so that a shard belongs to one rank or two. In the middle of an epoch only the same
    number of ranks can continue from a state. ``even`` is as in GlobalShuffleSampler. With
    ``within_shard="sequential"`` the rows of a shard stay in their own order.
    """

    _dealt_in_turn = False

    def __init__(
        self,
        shards: Backend | RowDataset | Sequence[int],
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        epoch: int = 0,
        even: str | bool = "drop",
        within_shard: str = "random",
    ) -> None:
        if within_shard not in ("random", "sequential"):
            raise OptionError(
                f'within_shard must be "random" or "sequential", not {within_shard!r}'
            )
        self._mixes = within_shard == "random"
        self._counts = _rows_by_shard(shards)
        self._starts = np.cumsum(self._counts) - self._counts
        self._known: tuple[int, Int64Array, Int64Array] | None = None
        n = int(self._counts.sum())
        super().__init__(n, seed, rank, world_size, epoch=epoch, even=even)

    def _describe(self) -> str:
        counts = hashlib.sha256(self._counts.astype("<i8").tobytes()).hexdigest()[:16]
        kind = "shuffle" if self._mixes else "sequential shuffle"
        return f"{kind} of {len(self._counts)} shards {counts} even {self.even}"

    def _order(self, places: Int64Array, epoch: int) -> Int64Array:
        order, ends = self._dealt(epoch)
        turns = np.searchsorted(ends, places, side="right")
        rows = np.empty_like(places)
        for turn in np.unique(turns).tolist():
            shard, here = int(order[turn]), turns == turn
            count = int(self._counts[shard])
            within = places[here] - (int(ends[turn]) - count)
            if self._mixes:
                within = kept_permutation(count, self.seed, epoch, 1 + shard).at(within)
            rows[here] = self._starts[shard] + within
        return rows

    def _dealt(self, epoch: int) -> tuple[Int64Array, Int64Array]:
        """Return the order of shards, and the end of each of them in the order of their rows."""
        if self._known is None or self._known[0] != epoch:
            order = IndexPermutation(len(self._counts), self.seed, epoch)[:]
            self._known = epoch, order, np.cumsum(self._counts[order])
        return self._known[1:]

    def _places(self, start: int, stop: int, taken: int) -> Int64Array:
        return np.arange(start, stop, dtype=np.int64) + self._run[0]

    def _steps_from(self, state: State) -> int:
        first, behind = self._run
        return max(behind - first, 0)

    @property
    def _run(self) -> tuple[int, int]:
        """First and last position of the run of this rank; a padded run continues at the start."""
        rank, ranks = self.rank, self.world_size
        if self.even is False:
            return self.num_rows * rank // ranks, self.num_rows * (rank + 1) // ranks
        size = -(-self.num_rows // ranks) if self.even == "pad" else self.num_rows // ranks
        return rank * size, (rank + 1) * size


class _GlobalOfRank(GlobalShuffleSampler, DistributedSampler[int]):
    pass


class _ShardsOfRank(ShardShuffleSampler, DistributedSampler[int]):
    pass


_DISTRIBUTED: dict[type, type] = {
    GlobalShuffleSampler: _GlobalOfRank,
    ShardShuffleSampler: _ShardsOfRank,
}
"""Classes of samplers of several ranks."""


def _rows_by_shard(shards: Any) -> Int64Array:
    if isinstance(shards, RowDataset):
        shards = shards.whole_backend("shards")
    given = np.asarray(getattr(shards, "shard_rows", shards))
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise TypeError(
            "shards must be a backend with shard_rows, all the rows of one, or how many rows each "
            f"shard has, not {shards!r}"
        )
    if given.size and int(given.min()) < 0:
        raise OptionError(f"a shard cannot have {int(given.min())} rows")
    return given.astype(np.int64)


@lru_cache(maxsize=256)
def kept_permutation(count: int, seed: int, epoch: int, part: int = 0) -> IndexPermutation:
    """Return a permutation and keep it; it takes at most 32 KiB."""
    return IndexPermutation(count, seed, epoch, part)
