"""Memory of blocks is reused when nothing refers to it any more, and does not grow."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch

from headrace.convert.memory import BlockMemory, Layout

SIZE = 1 << 20


def made(memory: BlockMemory, size: int = SIZE) -> np.ndarray:
    return memory.empty((size,), np.dtype(np.uint8))


def test_memory_is_used_again_when_the_last_view_is_gone() -> None:
    memory = BlockMemory()
    array = made(memory)
    address = array.ctypes.data
    tensor = torch.from_numpy(array[10:20].reshape(2, 5))
    row = tensor[1]
    del array, tensor
    assert made(memory).ctypes.data != address
    row.fill_(7)
    del row
    assert address in {made(memory).ctypes.data for _ in range(1)}


def test_arrays_that_are_alive_do_not_share_memory() -> None:
    memory = BlockMemory()
    alive: list[np.ndarray] = []
    rng = np.random.default_rng(0)
    for step in range(300):
        alive.append(made(memory, int(rng.integers(SIZE // 16, SIZE))))
        alive[-1].fill(step % 251)
        if len(alive) > 8:
            del alive[int(rng.integers(8))]
        for one in alive:
            assert (one == one[0]).all()


def test_memory_of_other_sizes_is_let_go_of() -> None:
    memory = BlockMemory()
    for size in range(SIZE, 40 * SIZE, SIZE):
        made(memory, size)
    kept = [one.nbytes for unused in memory._unused.values() for one in unused]
    assert sum(kept) <= 2 * 40 * SIZE


def test_small_arrays_and_objects() -> None:
    memory = BlockMemory()
    assert memory.empty((0, 3), np.dtype("f8")).shape == (0, 3)
    assert memory.empty((100_000,), np.dtype(object))[0] is None
    assert not memory._unused


def test_threads_and_collections_give_back_at_any_moment() -> None:
    memory = BlockMemory()
    failed: list[str] = []

    def work(value: int) -> None:
        for _ in range(200):
            array = made(memory, SIZE // 8 * (1 + value % 3))
            array.fill(value)
            cycle: list[object] = [array]
            cycle.append(cycle)  # freed only by a garbage collection
            if not (array == value).all():
                failed.append(f"{value}: memory of another thread")

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not failed


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_a_layout_joins_the_parts_of_each_column(rows: int) -> None:
    rng = np.random.default_rng(1)
    columns = [
        [rng.normal(size=rows).astype("f4"), rng.normal(size=3).astype("f4")],
        [rng.normal(size=(rows + 3, 2))],
        [np.arange(rows + 3)],
        [rng.normal(size=(rows, 5)).astype("f4")[:, 1:3], rng.normal(size=(3, 2)).astype("f4")],
        [np.zeros(rows, bool), np.ones(3, bool)],
    ]
    layout = Layout.of(columns)
    memory = np.empty(layout.size, np.uint8)
    layout.fill(memory, columns)
    tensors = layout.tensors(torch.from_numpy(memory))
    for parts, tensor in zip(columns, tensors, strict=True):
        expected = np.concatenate(parts)
        assert tensor.numpy().dtype == expected.dtype
        np.testing.assert_array_equal(tensor.numpy(), expected)
        assert tensor.data_ptr() % 16 == memory.ctypes.data % 16
