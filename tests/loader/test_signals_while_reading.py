"""Signals that arrive while rows are copied, which the user's own thread takes part in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc
from warm_interpreters import run_warm

pytestmark = pytest.mark.timeout(300)

FILES, ROWS = 12, 60_000

READING = """
import os, signal, sys, threading
from headrace import StructuredDataset

folder, rows_wanted = sys.argv[1], int(sys.argv[2])
main, real, here = threading.main_thread(), os.preadv, []

def preadv(*arguments):
    if threading.current_thread() is main:
        here.append(1)
        in_main_thread()
    return real(*arguments)

def in_main_thread():
    pass

os.preadv = preadv

def loader():
    return StructuredDataset.create_dataloader(
        folder, "arrow", batch_size=1000, num_workers=0, prefetch_bytes="8MiB", on_error="skip"
    )[0]

def rows_of(batches):
    return sum(len(batch["a"]) for batch in batches)

def readers():
    return [t for t in threading.enumerate() if t.name.startswith("headrace-read")]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arrow")
    values = np.arange(ROWS)
    table = pa.table({"a": values} | {f"c{i}": values.astype(np.float32) for i in range(12)})
    for number in range(FILES):
        with ipc.new_file(folder / f"{number:02}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=20_000)
    return folder


def run(folder: Path, script: str) -> str:
    done = run_warm("-c", READING + script, folder, FILES * ROWS)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_the_users_thread_takes_part(folder: Path) -> None:
    """Or the others here would show nothing."""
    said = run(
        folder,
        """
for _ in range(5):
    assert rows_of(loader()) == rows_wanted
print("read here" if here else "not here")
""",
    )
    assert "read here" in said


def test_it_does_not_where_handlers_may_raise_anything(folder: Path) -> None:
    said = run(
        folder,
        """
def late(*_):
    raise TimeoutError("the step took too long")

signal.signal(signal.SIGALRM, late)
for _ in range(5):
    assert rows_of(loader()) == rows_wanted
print("read here" if here else "not here")
signal.signal(signal.SIGALRM, signal.SIG_DFL)
for _ in range(5):
    assert rows_of(loader()) == rows_wanted
print("again" if here else "never again")
""",
    )
    assert said.split("\n")[:2] == ["not here", "again"]


def test_ctrl_c_in_the_midst_of_a_read_ends_it(folder: Path) -> None:
    said = run(
        folder,
        """
signal.signal(signal.SIGINT, signal.default_int_handler)
after = 0

def in_main_thread():
    signal.raise_signal(signal.SIGINT)

try:
    for _ in range(20):
        for batch in loader():
            after += bool(here)
except KeyboardInterrupt:
    print("ended after", after)
import gc
gc.collect()
assert not readers()
""",
    )
    assert "ended after 0" in said
