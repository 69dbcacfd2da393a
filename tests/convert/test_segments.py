"""Shared memory is filled again only when nothing sees what was in it before."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from both_sides import SIZE, WORKER, both_sides, received, sent

from headrace import WorkerError
from headrace.convert import arrivals
from headrace.convert import outgoing as sending
from headrace.convert.arrivals import forget_dead_senders, mapped_segments
from headrace.convert.outgoing import contents, outgoing
from headrace.convert.packing import Batch, pack, unpack

KEPT_AT_MOST = 16

__all__ = ["both_sides"]
pytestmark = pytest.mark.usefixtures("both_sides")


def test_a_segment_that_nobody_sees_is_filled_again() -> None:
    places = {received(value).ctypes.data for value in range(50)}
    assert len(places) == 1
    assert mapped_segments() == 1


def test_it_is_sent_once_and_named_after_that() -> None:
    first, second = sent(1), None
    assert (pickle.loads(first) == 1).all()
    second = sent(2)
    assert len(second) < len(first)
    assert (pickle.loads(second) == 2).all()


Holder = Callable[[Any], Any]


class Cell:
    """Part of a cycle, with a finalizer."""

    def __init__(self, value: Any) -> None:
        self.value, self.me = value, self

    def __del__(self) -> None:
        assert self.value[0] == 7, "seen by a finalizer"


HOLDERS: dict[str, tuple[Holder, Holder]] = {
    "array": (lambda array: array, lambda held: held),
    "slice": (lambda array: array[5:9], lambda held: held),
    "other dtype": (lambda array: array[:80].view(np.int64), lambda held: held.view(np.uint8)),
    "ndarray over it": (lambda a: np.ndarray((4,), np.uint8, a, 64), lambda held: held),
    "subclass": (lambda array: array.view(np.recarray), lambda held: np.asarray(held)),
    "memoryview": (lambda array: memoryview(array)[3:9], lambda held: np.asarray(held)),
    "tensor": (torch.from_numpy, lambda held: held.numpy()),
    "view of tensor": (
        lambda array: torch.from_numpy(array)[:64].view(torch.int64).unbind(0)[2],
        lambda held: held.reshape(1).view(torch.uint8).numpy(),
    ),
    "detached": (lambda a: torch.from_numpy(a).detach()[10:12], lambda held: held.numpy()),
    "storage": (
        lambda array: torch.from_numpy(array).untyped_storage(),
        lambda held: np.array(held.tolist()),
    ),
    "numpy of tensor": (lambda array: torch.from_numpy(array).numpy()[1:2], lambda held: held),
    "dlpack": (
        lambda array: torch.utils.dlpack.to_dlpack(torch.from_numpy(array)[:9]),
        lambda held: torch.utils.dlpack.from_dlpack(held).numpy(),
    ),
    "shared tensor": (
        lambda array: torch.from_numpy(array).share_memory_(),
        lambda held: held.numpy(),
    ),
    "Arrow buffer": (
        lambda array: pa.py_buffer(array).slice(8, 8),
        lambda held: np.frombuffer(held, np.uint8),
    ),
    "Arrow array": (
        lambda array: pa.Array.from_buffers(pa.uint8(), 50, [None, pa.py_buffer(array)])[3:],
        lambda held: held.to_numpy(),
    ),
    "cycle": (Cell, lambda held: held.value),
    "deep copy": (copy.deepcopy, lambda held: held),
    "pickle": (lambda a: pickle.dumps(torch.from_numpy(a)), lambda h: pickle.loads(h).numpy()),
}


@pytest.mark.parametrize("name", list(HOLDERS))
def test_whatever_is_held_keeps_what_it_shows(name: str) -> None:
    hold, look = HOLDERS[name]
    held = hold(received(7))
    for value in (8, 9, 10):
        received(value)
    shown = look(held)
    assert len(shown)
    assert (shown == 7).all()
    before = mapped_segments()
    del held, shown
    gc.collect()
    places = {received(value).ctypes.data for value in range(5)}
    assert len(places) == 1
    assert mapped_segments() == before, "nothing new is needed"


def test_what_is_written_to_a_batch_stays_in_it() -> None:
    held = torch.from_numpy(received(7))
    held[:10] = 1
    received(8)
    assert held[:12].tolist() == [1] * 10 + [7] * 2


def test_all_may_be_kept() -> None:
    kept = [received(value) for value in range(60)]
    assert mapped_segments() <= KEPT_AT_MOST
    assert all((array == value).all() for value, array in enumerate(kept))
    del kept
    assert mapped_segments() <= KEPT_AT_MOST


@pytest.mark.parametrize(("workers", "most"), [(1, 16), (64, 4), (300, 0)])
def test_many_workers_keep_few_segments_each(
    monkeypatch: pytest.MonkeyPatch, workers: int, most: int
) -> None:
    monkeypatch.setattr(WORKER, "num_workers", workers)
    kept = [received(value) for value in range(20)]
    assert mapped_segments() == most
    assert all((array == value).all() for value, array in enumerate(kept))


def test_what_was_needed_for_a_while_is_given_up() -> None:
    kept = [received(value) for value in range(10)]
    assert mapped_segments() == 10
    del kept
    for value in range(400):
        received(value % 256)
    assert mapped_segments() == 1


def test_sizes_that_grow_push_out_those_before() -> None:
    sizes = [1 << power for power in range(4, 23)]
    for size in sizes:
        received(3, size)
        received(4, size - 5)
    forget_dead_senders()
    assert mapped_segments() <= KEPT_AT_MOST
    assert (received(5, 0) == 5).all()


def test_more_bytes_than_may_be_kept_are_sent_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_MOST_BYTES", 1 << 20)
    kept = [received(value, 300_000) for value in range(8)]
    assert mapped_segments() == 3
    assert (received(9, 2 << 20) == 9).all()
    assert all((array == value).all() for value, array in enumerate(kept))


def test_what_was_not_sent_is_filled_again() -> None:
    place = outgoing(SIZE).memory.ctypes.data
    assert outgoing(SIZE).memory.ctypes.data == place
    one, other = outgoing(SIZE), outgoing(SIZE)
    assert one.memory.ctypes.data != other.memory.ctypes.data


def test_a_message_is_for_one_reader() -> None:
    message = sent(7)
    kept = pickle.loads(message)
    received(8)
    second = sent(9)  # by name, in the segment of the 8
    assert (pickle.loads(second) == 9).all()
    with pytest.raises(WorkerError, match="more than once"):
        pickle.loads(second)
    assert (kept == 7).all()


def test_a_message_by_name_in_another_process_is_an_error() -> None:
    received(1)
    message = sent(2)
    arrivals._here.mapped.clear()
    with pytest.raises(WorkerError, match=r"cannot be opened.*another process"):
        pickle.loads(message)


def test_what_was_sent_is_not_sent_again_with_other_contents() -> None:
    buffer = outgoing(SIZE)
    ForkingPickler.dumps(buffer)
    with pytest.raises(WorkerError, match="once more"):
        ForkingPickler.dumps(buffer)


def test_an_outgoing_buffer_is_copied_by_value() -> None:
    buffer = outgoing(10)
    buffer.memory[:] = 3
    copied, pickled = copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))
    buffer.memory[:] = 4
    assert copied.tolist() == pickled.tolist() == [3] * 10
    assert contents(buffer).tolist() == [4] * 10
    batch = Batch(a=torch.arange(5), b=["x"])
    again = copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))
    assert all(one["a"].tolist() == [0, 1, 2, 3, 4] and one["b"] == ["x"] for one in again)


def test_one_column_of_a_batch_keeps_all_of_it() -> None:
    def arrived(start: int) -> dict[str, Any]:
        batch = {"a": torch.arange(start, start + 9), "b": [pa.array([start])], "c": "text"}
        made: dict[str, Any] = pickle.loads(ForkingPickler.dumps(Batch(batch)))
        return made

    kept = arrived(100)["a"][3:4]
    array = arrived(200)["b"]
    for start in range(300, 310):
        arrived(start)
    assert kept.tolist() == [103]
    assert array[0].to_pylist() == [200]


def test_a_lease_ends_in_whatever_thread() -> None:
    found: list[Any] = []
    message = sent(1)
    threads = [threading.Thread(target=lambda: found.append(pickle.loads(message)))]
    threads.append(threading.Thread(target=found.clear))
    for thread in threads:
        thread.start()
        thread.join()
    received(2)
    assert mapped_segments() == 1


def test_packed_values_that_were_not_sent_can_be_looked_at() -> None:
    assert unpack(*pack({"a": [1, 2]})) == {"a": [1, 2]}
