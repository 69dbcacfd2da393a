"""Contracts of loaders: every row once, exact batches, arithmetic order; states at any position."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from headrace.errors import StateMismatchError
from headrace.loader import StatefulLoader, TabularDataset
from headrace.plan import State

__all__ = ["LoaderContract", "ResumeContract", "dealt_batches", "frozen", "ids_of", "saved"]

SavedState = dict[str, Any]


def ids_of(batch: Any) -> list[int]:
    """The values of the column ``id`` of a batch in any output format."""
    column = batch["id"]
    if isinstance(column, list):
        return column
    return list(column.to_pylist() if isinstance(column, pa.Array) else column.tolist())


def frozen(value: Any) -> Any:
    """Return a batch as a value that compares bit by bit, with the types and shapes of parts."""
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, pa.RecordBatch):
        return "arrow", str(value.schema), repr(value.to_pylist())
    if isinstance(value, Mapping):
        return "dict", tuple((key, frozen(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(map(frozen, value))
    return type(value).__name__, repr(value)


def dealt_batches(rows: Sequence[int], batch_size: int, lanes: int) -> list[list[int]]:
    """Return the batches of an epoch in which these rows, in this order, are dealt to lanes.

    Global batch g is batch ``g // lanes`` of lane ``g % lanes``; a lane is a run of the rows.
    """
    numbers = range(-(-len(rows) // batch_size))  # rounded up
    batches: dict[int, list[int]] = {}
    start = 0
    for batch in sorted(numbers, key=lambda batch: batch % lanes):  # lane after lane
        size = min(batch_size, len(rows) - batch * batch_size)
        batches[batch] = list(rows[start : start + size])
        start += size
    return [batches[batch] for batch in numbers]


def saved(loader: StatefulLoader) -> SavedState:
    """Return the state of a loader after a round trip through a file."""
    state: SavedState = json.loads(json.dumps(loader.state_dict()))
    return state


def batches_of(loader: StatefulLoader) -> list[Any]:
    """Return the batches of an epoch, or of the rest of it."""
    return list(map(frozen, loader))


class _Contract:
    """Files that are written once for all tests of a class, and loaders over them."""

    @classmethod
    def write(cls, directory: Path) -> None:
        """Write the files of the data set."""
        raise NotImplementedError

    @classmethod
    def create(cls, directory: Path, **options: Any) -> Any:
        """Return a new loader over them, with these options."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def data(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The directory of the files."""
        directory = tmp_path_factory.mktemp("data")
        cls.write(directory)
        return directory


class LoaderContract(_Contract):
    """Inherit as ``TestX(LoaderContract)`` and define ``write`` and ``create``.

    ``write`` makes several files of uneven sizes; their column ``id`` counts up from 0 in file
    order to ``rows``.
    """

    rows = 1154
    batch_size = 100

    @classmethod
    def create(cls, directory: Path, **options: Any) -> tuple[StatefulLoader, TabularDataset]:
        """Return a loader whose rows are counted, and its dataset."""
        raise NotImplementedError

    @pytest.mark.parametrize("drop_last", [False, True])
    @pytest.mark.parametrize(("shuffle", "mix"), [(False, 1), (True, None), (True, 1), (True, 3)])
    @pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
    @pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
    def test_every_row_once_in_exact_batches(
        self,
        data: Path,
        output_format: str,
        num_workers: int,
        shuffle: bool,
        mix: int | None,
        drop_last: bool,
    ) -> None:
        loader = self._loader(
            data,
            output_format=output_format,
            num_workers=num_workers,
            shuffle=shuffle,
            mix=mix,
            drop_last=drop_last,
        )
        got = list(map(ids_of, loader))
        full, rest = divmod(self.rows, self.batch_size)
        sizes = [self.batch_size] * full + ([rest] if rest and not drop_last else [])
        assert list(map(len, got)) == sizes
        assert len(loader) == len(sizes)
        seen = [row for batch in got for row in batch]
        assert len(set(seen)) == len(seen) == sum(sizes)
        assert set(seen) <= set(range(self.rows))
        if not shuffle:
            expected = dealt_batches(range(self.rows), self.batch_size, max(num_workers, 1))
            assert got == expected[: len(sizes)]
        else:
            assert seen != sorted(seen)

    def test_it_is_a_torch_loader_without_batching_of_its_own(self, data: Path) -> None:
        loader, dataset = self.create(data, num_workers=0, batch_size=self.batch_size)
        assert isinstance(loader, DataLoader)
        assert loader.batch_size is None
        assert loader.dataset is dataset
        assert dataset.num_rows == self.rows

    @pytest.mark.parametrize(("shuffle", "mix"), [(False, 1), (True, None), (True, 1), (True, 3)])
    def test_lanes_and_not_workers_decide_the_order(
        self, data: Path, shuffle: bool, mix: int | None
    ) -> None:
        orders = [
            list(map(ids_of, self._loader(data, num_workers=n, lanes=4, shuffle=shuffle, mix=mix)))
            for n in (0, 1, 2)
        ]
        assert orders[0] == orders[1] == orders[2]
        if not shuffle:
            assert orders[0] == dealt_batches(range(self.rows), self.batch_size, 4)

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_epochs_differ_and_can_be_had_again(self, data: Path, num_workers: int) -> None:
        options = {"num_workers": num_workers, "shuffle": True, "mix": 2}
        loader = self._loader(data, **options)
        epochs = [list(map(ids_of, loader)) for _ in range(3)]
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
        assert all(sorted(chain(*epoch)) == list(range(self.rows)) for epoch in epochs)
        again = self._loader(data, **options)
        again.set_epoch(2)
        assert list(map(ids_of, again)) == epochs[2]
        other = self._loader(data, **options, shuffle_seed=7)
        assert list(map(ids_of, other)) != epochs[0]

    def _loader(self, data: Path, **options: Any) -> StatefulLoader:
        return self.create(data, batch_size=self.batch_size, **options)[0]


class ResumeContract(_Contract):
    """Inherit as ``TestX(ResumeContract)``, define ``write`` and ``create``, set ``options``.

    Keep an epoch at about a dozen batches: a state is taken and loaded at every one of them.
    """

    options: ClassVar[Mapping[str, Any]] = {}
    """keywords for ``create``"""

    @pytest.fixture(scope="class")
    @classmethod
    def epochs(cls, data: Path) -> list[list[Any]]:
        """Return three epochs without interruption and without taking a state."""
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
        loader: StatefulLoader = cls.create(data, **cls.options)
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
