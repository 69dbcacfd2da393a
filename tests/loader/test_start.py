"""Workers that the library's own server starts: their input, and their results."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest
from small_files import ROWS, all_ids, write_parquet
from warm_interpreters import ColdProcess, WarmProcess

from headrace import StructuredDataset
from headrace.loader.start import WorkerContext

SCRIPT = """
import collections, dataclasses, enum, json, sys
from pathlib import Path

print("imported", flush=True)  # no guard: a worker that imported this would start workers itself

import torch
from headrace import StructuredDataset

Pair = collections.namedtuple("Pair", "ids twice")
factor = 2

class Kind(enum.Enum):
    EVEN = 0
    ODD = 1

@dataclasses.dataclass
class Item:
    pair: Pair
    kind: Kind
    made = 0

    def scaled(self):
        return self.pair.ids * factor

class Refused(Exception):
    def __init__(self, row, reason):
        super().__init__(row, reason)
        self.row = row

def outer(bound):
    def transform(batch):
        if bound is not None and int(batch["id"].max()) >= bound:
            raise Refused(bound, "too large")
        Item.made += 1  # in the worker
        ids = batch["id"]
        return Item(Pair(ids, (lambda x: x * factor)(ids)), Kind(len(ids) % 2)), (lambda: factor)
    return transform

def make(**options):
    options = {"batch_size": 100, "num_workers": 2, **options}
    return StructuredDataset.create_dataloader(sys.argv[1], **options)[0]

seen = 0
for item, function in make(transform=outer(None), worker_init_fn=lambda worker: None):
    assert type(item) is Item and type(item.pair) is Pair, type(item)
    assert item.kind is Kind.EVEN or item.kind is Kind.ODD
    assert torch.equal(item.pair.twice, 2 * item.pair.ids)
    assert function() == 2
    seen += len(item.pair.ids)
assert Item.made == 0  # what a worker does to its copy of a class stays there
factor = 3
assert torch.equal(Item(Pair(torch.ones(1), None), None).scaled(), torch.full((1,), 3.0))
try:
    for _ in make(transform=outer(777)):
        pass
except Refused as error:
    refused = error.row
print(json.dumps([seen, refused]))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("how", ["script", "-c", "-m", "exec", "fork"])
def test_code_of_a_script_without_a_guard_works_both_ways(
    data: Path, tmp_path: Path, how: str
) -> None:
    (tmp_path / "training.py").write_text(SCRIPT)
    code = SCRIPT
    if how == "fork":
        code = code.replace(
            '"num_workers": 2,', '"num_workers": 2, "multiprocessing_context": how,'
        )
        code = "how = 'fork'\n" + code
    if how == "exec":  # as in a notebook: cells run in a __main__ that is not a file
        code = f"exec(compile({SCRIPT!r}, '<cell 1>', 'exec'))"
    command = {"script": [tmp_path / "training.py"], "-m": ["-m", "training"]}.get(how)
    kind = ColdProcess if how == "script" else WarmProcess
    with kind(*(command or ["-c", code]), data, cwd=tmp_path) as process:
        done = process.finish()
    assert done.returncode == 0, done.stderr
    imported, result = done.stdout.splitlines()
    assert imported == "imported"
    assert json.loads(result) == [ROWS, 777]


SLOTS = """
import dataclasses, sys
from headrace import StructuredDataset

@dataclasses.dataclass(slots=True)
class Item:
    ids: list
    unset: int = dataclasses.field(init=False)

@dataclasses.dataclass(slots=True, frozen=True)
class Frozen:
    ids: list

class Base:
    __slots__ = ("first",)

class Both(Base):  # has slots and a dict
    pass

class Own:
    __slots__ = ("secret",)

    def __getstate__(self):
        return (self.secret, "kept")

    def __setstate__(self, state):
        self.secret, kept = state
        assert kept == "kept"

sent = Both()
sent.first, sent.second = 1, 2

def transform(batch):
    ids = batch["id"].tolist()
    both, own = Both(), Own()
    both.first, both.second, own.secret = sent.first, sent.second, ids
    return Item(ids), Frozen(ids), both, own

loader, _ = StructuredDataset.create_dataloader(sys.argv[1], num_workers=1, transform=transform)
for item, frozen, both, own in loader:
    assert item.ids == frozen.ids == own.secret
    assert not hasattr(item, "unset") and not hasattr(item, "__dict__")
    assert (both.first, both.second, both.__dict__) == (1, 2, {"second": 2})
print("done")
"""


def test_classes_with_slots_work_both_ways(data: Path, tmp_path: Path) -> None:
    (tmp_path / "slots.py").write_text(SLOTS)
    with WarmProcess(tmp_path / "slots.py", data) as process:
        done = process.finish()
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


CHANGED = """
import os, sys, tempfile
from headrace import StructuredDataset

if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    data = os.path.abspath(sys.argv[1])

    def seen(batch):
        import late
        return late.name, os.getcwd(), os.environ.get("LATE"), os.environ.get("GONE")

    def run():
        loader, _ = StructuredDataset.create_dataloader(data, num_workers=1, transform=seen)
        return next(iter(loader))

    def write(name):
        with open(os.path.join(folder, "late.py"), "w") as file:
            file.write(f"name = {name!r}")

    os.environ["GONE"] = "not yet"
    write("first")
    sys.path.insert(0, folder)
    assert run() == ("first", os.getcwd(), None, "not yet"), run()
    # The server runs already: all of these are sent with every start.
    os.chdir(folder)
    os.environ["LATE"] = "set"
    del os.environ["GONE"]
    assert run() == ("first", os.getcwd(), "set", None), run()
    print("done")
"""


def test_folder_path_and_environment_are_those_of_the_trainer(data: Path, tmp_path: Path) -> None:
    (tmp_path / "changed.py").write_text(CHANGED)
    with WarmProcess(tmp_path / "changed.py", data) as process:
        done = process.finish()
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_loaders_start_in_other_threads(data: Path) -> None:
    found: list[list[int]] = []

    def read() -> None:
        loader, _ = StructuredDataset.create_dataloader(
            data, batch_size=100, num_workers=1, transform=lambda batch: batch
        )
        found.append(all_ids(loader))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(range(ROWS))] * 2


def test_processes_that_the_server_started_use_it_for_their_workers(data: Path) -> None:
    def rank() -> None:
        loader, _ = StructuredDataset.create_dataloader(
            data, batch_size=100, num_workers=2, transform=lambda batch: os.getppid()
        )
        writing.send([os.getppid(), *set(loader)])

    context = WorkerContext()
    reading, writing = context.Pipe(duplex=False)
    process = context.Process(target=rank)
    process.start()
    server, *of_workers = reading.recv()
    process.join()
    assert (of_workers, process.exitcode) == ([server], 0)


IMPORTED = """
import atexit, gc, os, sys
registered = []
os.register_at_fork = lambda **handlers: registered.append(handlers)
import multiprocessing.util, threading, weakref, concurrent.futures.thread, logging, random
import torch, pyarrow, numpy, fsspec, cloudpickle
import torch.utils.data, pyarrow.dataset, pyarrow.parquet, torch.distributed
registered.clear()
callbacks, hooks = list(gc.callbacks), atexit._ncallbacks()
import headrace.loader._dataset, headrace.loader._workers, headrace.loader._agreement
import headrace.convert, headrace.convert.images
mine = [one for one in registered
        if any(getattr(f, "__module__", "").startswith(ROOMS) for f in one.values())]
print(len(mine), len(gc.callbacks) - len(callbacks))
"""


def test_importing_loaders_registers_nothing() -> None:
    rooms = ("headrace.loader", "headrace.convert", "headrace.process")
    with ColdProcess("-c", IMPORTED.replace("ROOMS", repr(rooms))) as process:
        done = process.finish()
    assert (done.returncode, done.stdout) == (0, "0 0\n"), done.stderr


def test_a_worker_has_no_modules_of_the_trainer(data: Path) -> None:
    """Check that a worker is a fork of a server that has imported only torch and the library."""
    loader, _ = StructuredDataset.create_dataloader(
        data, batch_size=100, num_workers=1, transform=lambda batch: "hypothesis" in sys.modules
    )
    assert "hypothesis" in sys.modules
    # The function belongs to this module, which is not sent and not needed.
    assert not any(loader)
