"""The contract of saving and loading states, for any configuration of a loader."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headrace.errors import StateMismatchError
from headrace.loader import StatefulLoader
from headrace.plan import State
from headrace.testing.loader_contract import frozen

__all__ = ["ResumeContract", "saved"]

SavedState = dict[str, Any]


def saved(loader: StatefulLoader) -> SavedState:
    """A state as it comes back from a file."""
    state: SavedState = json.loads(json.dumps(loader.state_dict()))
    return state


def batches_of(loader: StatefulLoader) -> list[Any]:
    """The batches of an epoch, or of what is left of it."""
    return list(map(frozen, loader))


class ResumeContract:
    """Inherit as ``TestX(ResumeContract)``, define ``write`` and ``create``, set ``options``.

    Keep an epoch at about a dozen batches: a state is taken and loaded at every one of them.
    """

    options: ClassVar[Mapping[str, Any]] = {}
    """keywords for ``create``"""

    @classmethod
    def write(cls, directory: Path) -> None:
        """Write the files of the data set."""
        raise NotImplementedError

    @classmethod
    def create(cls, directory: Path, **options: Any) -> StatefulLoader:
        """A new loader over them."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def data(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The directory of the files."""
        directory = tmp_path_factory.mktemp("data")
        cls.write(directory)
        return directory

    @pytest.fixture(scope="class")
    @classmethod
    def epochs(cls, data: Path) -> list[list[Any]]:
        """Return three epochs without interruption, of which no state is taken."""
        loader = cls.loader(data)
        return [batches_of(loader) for _ in range(3)]

    @pytest.fixture(scope="class")
    @classmethod
    def states(cls, data: Path, epochs: list[list[Any]]) -> list[SavedState]:
        """The states of the first epoch: before the first batch, and after each."""
        loader = cls.loader(data)
        states = [saved(loader)]
        seen = []
        for batch in loader:
            states.append(saved(loader))
            assert saved(loader) == states[-1], "asking twice gave another state"
            seen.append(frozen(batch))
        assert seen == epochs[0], "taking states changed the run"
        assert saved(loader) == states[-1]
        return states

    @classmethod
    def loader(cls, data: Path, state: SavedState | None = None) -> StatefulLoader:
        """A new loader, with a state loaded if there is one."""
        loader = cls.create(data, **cls.options)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    def test_goes_on_from_every_position(
        self, data: Path, epochs: list[list[Any]], states: list[SavedState]
    ) -> None:
        assert len(epochs[0]) >= 5
        for place, state in enumerate(states[:-1]):
            loader = self.loader(data, state)
            assert saved(loader) == state
            assert batches_of(loader) == epochs[0][place:], f"after {place} batches"
            if place % 4 == 1:
                assert batches_of(loader) == epochs[1], f"epoch after {place} batches"

    def test_after_the_last_batch_comes_the_next_epoch(
        self, data: Path, epochs: list[list[Any]], states: list[SavedState]
    ) -> None:
        assert states[-1]["epoch"] == states[0]["epoch"] + 1
        loader = self.loader(data, states[-1])
        assert batches_of(loader) == epochs[1]
        assert batches_of(loader) == epochs[2]

    def test_breaking_off_after_the_last_batch_loses_and_repeats_nothing(
        self, data: Path, epochs: list[list[Any]]
    ) -> None:
        loader = self.loader(data)
        running = iter(loader)
        for _ in epochs[0]:
            next(running)
        running.close()  # type: ignore[attr-defined]
        resumed = self.loader(data, saved(loader))
        assert batches_of(resumed) == epochs[1]
        assert batches_of(resumed) == epochs[2]

    def test_states_of_later_epochs(self, data: Path, epochs: list[list[Any]]) -> None:
        loader = self.loader(data)
        batches_of(loader)
        for _ in islice(loader, 3):
            pass
        state = saved(loader)
        assert state["epoch"] == 1
        resumed = self.loader(data, state)
        assert batches_of(resumed) == epochs[1][3:]
        assert batches_of(resumed) == epochs[2]

    def test_a_state_of_a_resumed_run_is_as_good(
        self, data: Path, epochs: list[list[Any]], states: list[SavedState]
    ) -> None:
        loader, place = self.loader(data), 0
        while place < len(epochs[0]):
            loader = self.loader(data, saved(loader))
            assert saved(loader) == states[place]
            step = [frozen(batch) for batch in islice(loader, 2)]
            assert step == epochs[0][place : place + 2]
            place += len(step)
        assert batches_of(self.loader(data, saved(loader))) == epochs[1]

    def test_between_iter_and_the_first_batch(
        self, data: Path, epochs: list[list[Any]], states: list[SavedState]
    ) -> None:
        loader = self.loader(data, states[4])
        running = iter(loader)
        assert [saved(loader), saved(loader)] == [states[4]] * 2
        assert frozen(next(running)) == epochs[0][4]
        assert saved(loader) == states[5]

    def test_a_broken_loop_starts_over_but_its_state_goes_on(
        self, data: Path, epochs: list[list[Any]], states: list[SavedState]
    ) -> None:
        loader = self.loader(data)
        for _ in islice(loader, 2):
            pass
        assert saved(loader) == states[2]
        assert batches_of(loader) == epochs[0]
        assert batches_of(loader) == epochs[1]

    def test_a_state_is_used_once(
        self, data: Path, epochs: list[list[Any]], states: list[SavedState]
    ) -> None:
        loader = self.loader(data, states[3])
        assert [frozen(batch) for batch in islice(loader, 1)] == epochs[0][3:4]
        assert batches_of(loader) == epochs[0]

    def test_the_last_state_loaded_counts(
        self, data: Path, epochs: list[list[Any]], states: list[SavedState]
    ) -> None:
        loader = self.loader(data, states[3])
        loader.load_state_dict(states[1])
        assert batches_of(loader) == epochs[0][1:]
        loader.load_state_dict(states[2])
        assert batches_of(loader) == epochs[0][2:]
        assert batches_of(loader) == epochs[1]

    def test_setting_the_epoch_of_the_state_keeps_it_and_another_drops_it(
        self, data: Path, epochs: list[list[Any]], states: list[SavedState]
    ) -> None:
        kept = self.loader(data, states[2])
        kept.set_epoch(0)
        assert batches_of(kept) == epochs[0][2:]
        dropped = self.loader(data, states[2])
        dropped.set_epoch(1)
        assert saved(dropped)["epoch"] == 1
        assert batches_of(dropped) == epochs[1]
        back = self.loader(data, states[2])
        back.set_epoch(1)
        back.set_epoch(0)
        assert batches_of(back) == epochs[0]

    def test_states_are_small(self, states: list[SavedState]) -> None:
        for state in states:
            assert len(json.dumps(state)) < 330 + 20 * len(state["lanes"])

    @pytest.mark.parametrize("part", ["files", "filters", "order", "seed"])
    def test_a_state_of_something_else_is_refused(
        self, data: Path, states: list[SavedState], part: str
    ) -> None:
        loader = self.loader(data)
        read = State.from_json(states[2])
        assert read.data is not None
        changes: dict[str, Any] = {"content": None, part: "other"}
        other = replace(read, data=read.data._replace(**changes)).as_json()
        with pytest.raises(StateMismatchError, match="other data or options"):
            loader.load_state_dict(other)
        assert saved(loader) == states[0]
