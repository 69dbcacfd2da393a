"""An interrupt while a server is silent ends a process, wherever it waits."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from numbered_rows import NAMES, put_all, wait_until
from servers.faults import SlowFirstByte
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
    s3_server.make_bucket(BUCKET)
    put_all(lambda name, body: s3_server.put(BUCKET, name, body))
    proxy = proxy_to(s3_server.url)
    rule = proxy.inject(FOR_EVER, **silent)
    options = {
        "storage_options": {"key": "AKIAFIRST", "secret": "hidden", "endpoint_url": proxy.url},
        "timeout_s": 3600.0,
        "num_workers": 0,
    }
    paths = [f"s3://{BUCKET}{name}" for name in names]
    with WarmProcess("-c", READING, json.dumps(paths), json.dumps(options)) as process:
        wait_until(lambda: rule.hits)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        ended = process.finish(timeout_s=100)
    assert time.monotonic() - began < 60
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "Exception ignored" not in ended.stderr
