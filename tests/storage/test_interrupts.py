"""An interrupt while a server is silent ends a process, wherever it waits."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from numbered_rows import NAMES, put_all, wait_until
from servers.faults import Request, SlowFirstByte
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from warm_interpreters import WarmProcess

BUCKET = "interrupted"
FOR_EVER = SlowFirstByte(3600)
READING = """
import json, sys
from penstock import StructuredDataset
paths, options = map(json.loads, sys.argv[1:])
loader, _ = StructuredDataset.create_dataloader(paths, **options)
list(loader)
"""
COPYING = """
import json, sys
from penstock import shuffle_into
path, target, options = sys.argv[1:]
shuffle_into(path, target, storage_options=json.loads(options))
"""


@pytest.mark.parametrize(
    ("names", "silent"),
    [
        ([f"/{name}" for name in NAMES], {"method": "HEAD"}),
        ([""], {"where": lambda request: "list-type" in request.query}),
        ([f"/{NAMES[1]}"], {"method": "GET"}),
        ([""], {"path": NAMES[1]}),
    ],
    ids=["files that are named", "a listing", "a footer", "one footer of many"],
)
def test_an_interrupt_while_files_are_found(
    s3_server: S3Server,
    proxy_to: Callable[..., FaultProxy],
    names: list[str],
    silent: dict[str, Any],
) -> None:
    options = {"timeout_s": 3600.0, "num_workers": 0}
    paths = json.dumps([f"s3://{BUCKET}{name}" for name in names])
    interrupt_in_a_stall(
        s3_server,
        proxy_to,
        silent,
        lambda storage: ("-c", READING, paths, json.dumps({"storage_options": storage, **options})),
    )


def test_an_interrupt_while_rows_are_copied(
    s3_server: S3Server, proxy_to: Callable[..., FaultProxy], tmp_path: Path
) -> None:
    asked = count()

    def rows_of_one(request: Request) -> bool:
        """What is fetched of a file after its footer."""
        return request.method == "GET" and NAMES[1] in request.path and next(asked) > 0

    interrupt_in_a_stall(
        s3_server,
        proxy_to,
        {"where": rows_of_one},
        lambda storage: ("-c", COPYING, f"s3://{BUCKET}", tmp_path / "copy", json.dumps(storage)),
    )


def interrupt_in_a_stall(
    server: S3Server,
    proxy_to: Callable[..., FaultProxy],
    silent: dict[str, Any],
    command: Callable[[dict[str, str]], tuple[Any, ...]],
) -> None:
    """Run a script, and interrupt it when the server has been asked what it is silent on."""
    server.make_bucket(BUCKET)
    put_all(lambda name, body: server.put(BUCKET, name, body))
    proxy = proxy_to(server.url)
    rule = proxy.inject(FOR_EVER, **silent)
    storage = {"key": "AKIAFIRST", "secret": "hidden", "endpoint_url": proxy.url}
    with WarmProcess(*command(storage)) as process:
        wait_until(lambda: rule.hits)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        ended = process.finish(timeout_s=100)
    assert time.monotonic() - began < 60
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "Exception ignored" not in ended.stderr
