"""What samplers share whose order is arithmetic: ranks, epochs, and states to go on from.

A sampler is one lane a rank: at each step every rank takes the next sample (or batch) of the order
of an epoch. Its states are those of all loaders, and all that they need is a number of steps; see
``headrace.plan.state``.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from torch.utils.data import Sampler

from headrace.errors import OptionError, StateMismatchError
from headrace.model import Cursor
from headrace.plan import END, Fingerprint, Readers, State

__all__ = ["ResumableSampler", "whole_number"]

T_co = TypeVar("T_co", covariant=True)


class ResumableSampler(Sampler[T_co]):
    """The samples, or the batches, that one of several ranks takes in an epoch.

    An iteration that comes to its end goes on to the next epoch; ``set_epoch`` chooses one. One
    that is left begins its epoch again, also if it went on from a state.

    Args:
        seed: The seed of the order.
        rank: The rank of this process.
        world_size: Number of ranks.
        epoch: The epoch of the first iteration.
        even: How ranks come to the same number of steps; see ``headrace.plan.Share``.
    """

    _dealt_in_turn = True
    """Whether ranks take turns, so that any number of them can go on from any step."""
    _next: State
    """where the next iteration begins"""
    _began: State
    """where the last iteration began; its identity tells iterations apart"""
    _taken: int | None
    """number of steps that iteration has taken; None if it has not begun, or has ended"""

    def __init__(self, seed: int, rank: int, world_size: int, epoch: int, even: str) -> None:
        self.seed = whole_number("seed", seed)
        self.world_size = whole_number("world_size", world_size, 1)
        self.num_replicas = self.world_size  # as torch calls it
        self.rank = whole_number("rank", rank, 0)
        if self.rank >= self.world_size:
            raise OptionError(f"rank {rank} of {world_size}: ranks count from 0")
        self._readers = Readers(
            self.rank, self.world_size, even=even, in_step=False, any_ranks=True
        )
        self._move(self._readers.start(whole_number("epoch", epoch, 0)))

    # --- the order

    @abstractmethod
    def _describe(self) -> str:
        """Return all that decides the order beside the seed, for fingerprints."""

    @abstractmethod
    def _steps_from(self, state: State) -> int:
        """Return the number of steps that this rank has, from the last share of a state on."""

    @abstractmethod
    def _is_over(self, state: State) -> bool:
        """Return True if the epoch is over behind a state, for all ranks alike."""

    @abstractmethod
    def _computed(self, state: State, start: int, stop: int) -> Sequence[T_co]:
        """Return what this rank takes at some steps, from the last share of a state on."""

    @property
    def _at_once(self) -> int:
        """Number of steps that are computed together while they are handed out one by one."""
        return 1 << 13

    def __len__(self) -> int:
        """Return the number of steps of this rank in a whole epoch."""
        return self._steps_from(self._readers.start(0))

    def __iter__(self) -> Iterator[T_co]:
        # A generator: loaders of torch may call ``iter`` twice, and use only the second one.
        began = self._began = replace(self._next)
        self._next, self._taken = self._readers.start(began.epoch), 0
        first, behind = began.steps[0], self._steps_from(began)
        for start in range(first, behind, self._at_once):
            stop = min(start + self._at_once, behind)
            for taken, found in enumerate(self._computed(began, start, stop), start - first + 1):
                if self._began is began:
                    self._taken = taken
                yield found
        if self._began is began:
            self._next, self._taken = self._readers.start(began.epoch + 1), None

    # --- epochs and states

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of; behind a loader that reads ahead, maybe soon."""
        return self._next.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A place in this same epoch stays."""
        epoch = whole_number("epoch", epoch, 0)
        if epoch != self.epoch:
            self._move(self._readers.start(epoch))
        elif self._taken is None:  # what comes next is not of the last iteration
            self._began = self._next

    def _seek(self, steps: int, epoch: int | None) -> None:
        start = self._readers.start(self._epoch_or(epoch))
        self._move(self.or_next_epoch(self.after(start, steps)))

    def _position(self, steps: int | None) -> State:
        """Return the state behind so many steps of the last iteration; None: all that it took."""
        if steps is None:
            return self._next if self._taken is None else self.after(self._began, self._taken)
        return self.after(self._began, steps)

    @property
    def next_start(self) -> State:
        """Where the next iteration begins."""
        return self._next

    def after(self, state: State, steps: int) -> State:
        """Return the state behind so many more steps, also if the epoch is over by then."""
        total = state.steps[0] + steps
        return replace(state, steps=(total,), cursors={self.rank: Cursor(0, total)})

    def remaining(self, state: State) -> int:
        """Return the number of steps of this rank behind a state of this sampler."""
        return max(self._steps_from(state) - state.steps[0], 0)

    def as_json(self, state: State, fingerprint: Fingerprint | None = None) -> dict[str, Any]:
        """Return a state of this sampler as JSON; behind the last step that of the next epoch.

        Args:
            state: The state.
            fingerprint: What it refers to, if that is more than the order of this sampler.
        """
        return self.or_next_epoch(state).as_json(fingerprint or self.fingerprint)

    def resume(self, state: Mapping[str, Any], fingerprint: Fingerprint | None = None) -> None:
        """Let the next iteration, once, go on from a state; see ``as_json``.

        Raises:
            StateMismatchError: The state belongs to other data or to another order, or these ranks
                cannot go on from it.
        """
        read = State.from_json(state, fingerprint or self.fingerprint)
        mine = self._readers.resume(read, evenly=self._dealt_in_turn)
        if mine is None:
            raise StateMismatchError(
                f"the state is of {read.stage.ranks} ranks, and {self.world_size} cannot go on "
                f"from it here ({self._describe()}): only as many as before can where samples are "
                "dealt by shards, or ranks took different numbers of steps; begin the next epoch"
            )
        if mine.cursor(self.rank)[0] == END:  # this rank had come to its end, and others had not
            self._move(self.after(mine, self.remaining(mine)))
        else:
            self._move(self.or_next_epoch(self.after(mine, 0)))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration, once, go on from a state of any rank that was in step with this.

        An iteration that only looks at a first batch uses it up: load the state again after it.
        The state of all ranks (``merge_states``) will do, too.
        """
        self.resume(state)

    @property
    def fingerprint(self) -> Fingerprint:
        """What a state of this sampler refers to."""
        return Fingerprint("", "", self._describe(), self.seed)

    def _epoch_or(self, epoch: int | None) -> int:
        return self.epoch if epoch is None else whole_number("epoch", epoch, 0)

    def or_next_epoch(self, state: State) -> State:
        """Return a state, or the start of the next epoch if it is behind the last step."""
        return self._readers.start(state.epoch + 1) if self._is_over(state) else state

    def _move(self, state: State) -> None:
        self._next = self._began = state
        self._taken = None

    # --- frameworks

    @property
    def generator(self) -> None:
        """Stop Accelerate from sharing out what is already shared out.

        It looks for this attribute in the samplers whose batches it is about to share out.
        """
        if self.world_size == 1:
            raise AttributeError("generator")
        raise OptionError(
            f"this sampler is of rank {self.rank} of {self.world_size}, and Accelerate shares out "
            "batches itself: give it a sampler with rank=0 and world_size=1"
        )


def whole_number(name: str, value: object, least: int | None = None) -> int:
    """Return a value of any integer type as an int: those of numpy overflow."""
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise OptionError(f"{name} must be an int, not {value!r}")
    number = operator.index(value)
    if least is not None and number < least:
        raise OptionError(f"{name} must be an int of at least {least}, not {value!r}")
    return number
