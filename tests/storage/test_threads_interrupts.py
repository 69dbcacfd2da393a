"""An interrupt while a server is silent ends a process, wherever it waits."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from numbered_rows import NAMES, put_all, wait_until
from servers.faults import Request, SlowFirstByte
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from warm_interpreters import WarmProcess, assert_interrupted

BUCKET = "interrupted"
FOR_EVER = SlowFirstByte(3600)
READING = """
import json, sys
from headrace import StructuredDataset
paths, options = map(json.loads, sys.argv[1:])
loader, _ = StructuredDataset.create_dataloader(paths, **options)
list(loader)
"""
COPYING = """
import json, sys
from headrace import shuffle_into
path, target, options = sys.argv[1:]
shuffle_into(path, target, storage_options=json.loads(options))
"""


SILENT: dict[str, tuple[list[str], dict[str, Any]]] = {
    "files that are named": ([f"/{name}" for name in NAMES], {"method": "HEAD"}),
    "a listing": ([""], {"where": lambda request: "list-type" in request.query}),
    "a footer": ([f"/{NAMES[1]}"], {"method": "GET"}),
    "one footer of many": ([""], {"path": NAMES[1]}),
}
"""what is read, and which requests the server is silent on"""


def test_an_interrupt_ends_a_process(s3_server: S3Server, tmp_path: Path) -> None:
    """Side by side: a process that is interrupted waits for seconds, for the server that is."""
    s3_server.make_bucket(BUCKET)
    put_all(lambda name, body: s3_server.put(BUCKET, name, body))
    asked = count()

    def rows_of_one(request: Request) -> bool:
        """What is fetched of a file after its footer."""
        return request.method == "GET" and NAMES[1] in request.path and next(asked) > 0

    def reading(names: list[str], storage: dict[str, str]) -> tuple[Any, ...]:
        options = {"storage_options": storage, "timeout_s": 3600.0, "num_workers": 0}
        paths = [f"s3://{BUCKET}{name}" for name in names]
        return "-c", READING, json.dumps(paths), json.dumps(options)

    def copying(storage: dict[str, str]) -> tuple[Any, ...]:
        return "-c", COPYING, f"s3://{BUCKET}", tmp_path / "copy", json.dumps(storage)

    with ThreadPoolExecutor(len(SILENT) + 1) as side_by_side:
        begun = {
            case: side_by_side.submit(interrupted, s3_server, silent, partial(reading, names))
            for case, (names, silent) in SILENT.items()
        }
        begun["rows that are copied"] = side_by_side.submit(
            interrupted, s3_server, {"where": rows_of_one}, copying
        )
    for case, one in begun.items():
        assert_interrupted(*one.result(), case)


def interrupted(
    server: S3Server,
    silent: dict[str, Any],
    command: Callable[[dict[str, str]], tuple[Any, ...]],
) -> tuple[CompletedProcess[str], float]:
    """How a script ends that is interrupted once the server is silent, and after how long."""
    with FaultProxy(server.url) as proxy:
        rule = proxy.inject(FOR_EVER, **silent)
        storage = {"key": "AKIAFIRST", "secret": "hidden", "endpoint_url": proxy.url}
        with WarmProcess(*command(storage)) as process:
            wait_until(lambda: rule.hits)
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            return process.finish(timeout_s=100), time.monotonic() - began
