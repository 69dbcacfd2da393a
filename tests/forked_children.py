"""A program that reads, and forks children that read while one of its threads reads on.

Its arguments are the kind of a source, its location, options as JSON, the word "read" or "only
forked" for what the program itself does before it forks, and the number of rows. It prints how many
children ended in which way.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

CHILDREN = 50
AT_ONCE = 4
PATIENCE_S = 100
ENDS = {0: "read", 3: "refused", 4: "wrong", -signal.SIGALRM: "hung"}

Ids = list[int]


def streamed(location: str, **options: Any) -> Callable[[], Ids]:
    from headrace import StructuredDataset

    dataset = StructuredDataset(location, batch_size=100, output_format="numpy", **options)
    return lambda: [int(one) for batch in dataset for one in batch["id"]]


def by_index(kind: str, location: str) -> Callable[[], Ids]:
    from headrace import access

    backend = getattr(access, kind)(location)
    return lambda: backend.take(range(len(backend)), columns=["id"])["id"].to_pylist()


def tar_rows(location: str) -> Callable[[], Ids]:
    from headrace.access import TarBackend

    backend = TarBackend(location)
    return lambda: list(map(int, backend.take(range(len(backend)))["id"].to_pylist()))


def tar_stream(location: str) -> Callable[[], Ids]:
    from headrace import TarDataset

    dataset = TarDataset(location, batch_size=100)
    return lambda: [int(bytes(one)) for batch in dataset for one in batch["id"]]


def given(location: str, **options: Any) -> Callable[[], Ids]:
    """Return a reader over a pyarrow or fsspec filesystem that the user has made."""
    if options:
        import pyarrow.fs as pafs

        filesystem: Any = pafs.S3FileSystem(**options)
    else:
        import fsspec

        filesystem = fsspec.filesystem("http")
    return streamed(location, filesystem=filesystem)


KINDS: dict[str, Callable[..., Callable[[], Ids]]] = {
    "stream": streamed,
    "given": given,
    "tar stream": tar_stream,
    "tar rows": tar_rows,
    **{
        kind: lambda location, kind=kind: by_index(kind, location)
        for kind in ("ArrowBackend", "ParquetBackend", "ArrayRecordBackend", "LanceBackend")
    },
}


def end_of_child(read: Callable[[], Ids], count: int) -> int:
    """Read with other threads running, as a worker does: they use the memory of the parent's
    stacks.
    """
    from headrace import WorkerError

    signal.alarm(PATIENCE_S)
    for _ in range(8):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    try:
        return 0 if sorted(read()) == list(range(count)) else 4
    except WorkerError as error:
        return 3 if 'multiprocessing_context="forkserver"' in str(error) else 1


def fork_child(read: Callable[[], Ids], count: int) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = end_of_child(read, count)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child


def main(kind: str, location: str, options: str, before: str, count: str) -> None:
    make, given_options, rows = KINDS[kind], json.loads(options), int(count)
    done = threading.Event()
    if before == "read":
        read = make(location, **given_options)
        assert sorted(read()) == list(range(rows))
        reading = threading.Thread(target=lambda: read_until(read, done))
        reading.start()
    else:

        def read() -> Ids:
            return make(location, **given_options)()

    ended: Counter[str] = Counter()
    for _ in range(0, CHILDREN, AT_ONCE):
        for child in [fork_child(read, rows) for _ in range(AT_ONCE)]:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            ended[ENDS.get(code, f"exit code {code}")] += 1
    done.set()
    if before == "read":
        reading.join()
    print(json.dumps(ended))


def read_until(read: Callable[[], Ids], done: threading.Event) -> None:
    while not done.is_set():
        read()


if __name__ == "__main__":
    main(*sys.argv[1:])
