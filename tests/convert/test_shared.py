"""Buffers that a worker reuses again and again, and the values that arrive from them."""

from __future__ import annotations

import copy
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from headrace import WorkerError
from headrace.convert import shared
from headrace.convert.packing import Batch, pack, unpack
from headrace.convert.shared import SharedBuffer, forget_dead_senders
from headrace.process import PerProcess

SIZE = 100_000
WORKER = SimpleNamespace(num_workers=1)


@pytest.fixture(autouse=True)
def _both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process both send, as a worker does, and receive. It begins with no segments."""
    monkeypatch.setattr(shared, "get_worker_info", lambda: WORKER)
    monkeypatch.setattr(shared, "_segments", PerProcess(shared._Segments))
    monkeypatch.setattr(shared, "_mapped", PerProcess(dict))


def sent(value: int, size: int = SIZE) -> bytes:
    """Return the message that sends ``size`` bytes of a value."""
    buffer = SharedBuffer(size)
    buffer.memory[:] = value
    return bytes(ForkingPickler.dumps(buffer))


def received(value: int, size: int = SIZE) -> Any:
    array = pickle.loads(sent(value, size))
    assert array.shape == (size,)
    assert (array == value).all()
    return array


def mapped_segments() -> int:
    return len(shared._mapped.get())


def test_a_segment_whose_contents_arrived_is_filled_again() -> None:
    kept = [received(value) for value in range(50)]
    assert mapped_segments() == 1
    assert all((array == value).all() for value, array in enumerate(kept))


def test_memory_is_sent_once_and_named_after_that() -> None:
    first = sent(1)
    assert (pickle.loads(first) == 1).all()
    second = sent(2)
    assert len(second) < len(first)
    assert (pickle.loads(second) == 2).all()


HOLDERS: dict[str, tuple[Any, Any]] = {
    "array": (lambda array: array, lambda held: held),
    "slice": (lambda array: array[5:9], lambda held: held),
    "other dtype": (lambda array: array[:80].view(np.int64), lambda held: held.view(np.uint8)),
    "ndarray over it": (lambda a: np.ndarray((4,), np.uint8, a, 64), lambda held: held),
    "subclass": (lambda array: array.view(np.recarray), np.asarray),
    "memoryview": (lambda array: memoryview(array)[3:9], np.asarray),
    "tensor": (torch.from_numpy, lambda held: held.numpy()),
    "view of tensor": (
        lambda array: torch.from_numpy(array)[:64].view(torch.int64).unbind(0)[2],
        lambda held: held.reshape(1).view(torch.uint8).numpy(),
    ),
    "storage": (
        lambda array: torch.from_numpy(array).untyped_storage(),
        lambda held: np.array(held.tolist()),
    ),
    "dlpack": (
        lambda array: torch.utils.dlpack.to_dlpack(torch.from_numpy(array)[:9]),
        lambda held: torch.utils.dlpack.from_dlpack(held).numpy(),
    ),
    "Arrow buffer": (
        lambda array: pa.py_buffer(array).slice(8, 8),
        lambda held: np.frombuffer(held, np.uint8),
    ),
    "Arrow array": (
        lambda array: pa.Array.from_buffers(pa.uint8(), 50, [None, pa.py_buffer(array)])[3:],
        lambda held: held.to_numpy(),
    ),
}


@pytest.mark.parametrize("name", list(HOLDERS))
def test_whatever_is_held_keeps_what_it_shows(name: str) -> None:
    hold, look = HOLDERS[name]
    held = hold(received(7))
    for value in (8, 9, 10):
        received(value)
    values = look(held)
    assert len(values)
    assert (values == 7).all()


def test_what_arrived_may_be_written_to_and_stays() -> None:
    held = torch.from_numpy(received(7))
    held[:10] = 1
    received(8)
    assert held[:12].tolist() == [1] * 10 + [7] * 2


@pytest.mark.parametrize(("workers", "most"), [(1, 8), (64, 4), (300, 0)])
def test_buffers_under_way_have_segments_of_their_own(
    monkeypatch: pytest.MonkeyPatch, workers: int, most: int
) -> None:
    """Check that many workers keep few segments, as each takes a descriptor of the receiver."""
    monkeypatch.setattr(WORKER, "num_workers", workers)
    messages = [sent(value) for value in range(20)]
    arrived = [pickle.loads(message) for message in messages]
    assert all((array == value).all() for value, array in enumerate(arrived))
    assert mapped_segments() == most


def test_larger_segments_take_the_place_of_smaller_ones() -> None:
    for power in range(4, 23):
        received(3, 1 << power)
        received(4, (1 << power) - 5)
    assert mapped_segments() == 1
    assert (received(5, 0) == 5).all()


def test_more_bytes_than_may_be_kept_are_sent_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_MOST_BYTES", 1 << 20)
    messages = [sent(value, 300_000) for value in range(8)]
    assert all((pickle.loads(one) == value).all() for value, one in enumerate(messages))
    assert mapped_segments() == 3
    assert (received(9, 2 << 20) == 9).all()


def test_what_was_not_sent_is_filled_again() -> None:
    place = SharedBuffer(SIZE).memory.ctypes.data
    assert SharedBuffer(SIZE).memory.ctypes.data == place
    one, other = SharedBuffer(SIZE), SharedBuffer(SIZE)
    assert one.memory.ctypes.data != other.memory.ctypes.data


def test_a_message_is_for_one_reader() -> None:
    message = sent(7)
    kept = pickle.loads(message)
    received(8)
    second = sent(9)
    assert (pickle.loads(second) == 9).all()
    with pytest.raises(WorkerError, match="more than once"):
        pickle.loads(second)
    assert (kept == 7).all()


def test_a_message_by_name_in_another_process_is_an_error() -> None:
    received(1)
    message = sent(2)
    shared._mapped.get().clear()
    with pytest.raises(WorkerError, match=r"cannot be opened.*another process"):
        pickle.loads(message)


def test_a_buffer_is_copied_by_value() -> None:
    buffer = SharedBuffer(10)
    buffer.memory[:] = 3
    copied, pickled = copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))
    buffer.memory[:] = 4
    assert copied.tolist() == pickled.tolist() == [3] * 10
    batch = Batch(a=torch.arange(5), b=["x"])
    again = copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))
    assert all(one["a"].tolist() == [0, 1, 2, 3, 4] and one["b"] == ["x"] for one in again)


def test_batches_inside_of_a_value_keep_their_memory_while_it_is_packed() -> None:
    batches = [Batch(a=torch.full((100,), value)) for value in range(3)]
    arrived = unpack(*pack(batches))
    assert [set(batch["a"].tolist()) for batch in arrived] == [{0}, {1}, {2}]


def test_packed_values_that_were_not_sent_can_be_looked_at() -> None:
    assert unpack(*pack({"a": [1, 2]})) == {"a": [1, 2]}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_neither_fills_nor_sends_segments_of_its_parent() -> None:
    received(1)
    buffer = SharedBuffer(SIZE)
    buffer.memory[:] = 7
    child = os.fork()
    if not child:
        own = SharedBuffer(SIZE)
        own.memory[:] = 9
        _, memory, segment = buffer.send()
        right = segment is None and bool((memory == 7).all()) and mapped_segments() == 0
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    array = pickle.loads(bytes(ForkingPickler.dumps(buffer)))
    assert (array == 7).all()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_segments_of_processes_that_are_gone_are_let_go() -> None:
    received(1)
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    mapped = shared._mapped.get()
    for sender, place in list(mapped):
        mapped[child, place] = mapped.pop((sender, place))
    forget_dead_senders()
    assert mapped_segments() == 0


def test_outside_of_workers_there_are_no_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "get_worker_info", lambda: None)
    assert isinstance(received(3), np.ndarray)
    assert mapped_segments() == 0
