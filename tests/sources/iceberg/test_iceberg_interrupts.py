"""An interrupt while a server is silent ends a process that looks into files of a table."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

from numbered_tables import make_table
from servers.faults import SlowFirstByte
from servers.proxy import FaultProxy
from servers.s3 import S3Server
from warm_interpreters import WarmProcess
from writers.catalogs import WritingCatalog
from writers.committing import data_files

READING = """
import json, sys
from headrace import IcebergDataset
IcebergDataset.create_dataloader(
    "tests.db.t", catalog_config=json.loads(sys.argv[1]), split_rows=15, num_workers=0
)
"""


def test_an_interrupt_while_one_footer_of_many_is_silent(
    s3_catalog: WritingCatalog, s3_server: S3Server, proxy_to: Callable[..., FaultProxy]
) -> None:
    table = make_table(s3_catalog, group_rows=10)
    proxy = proxy_to(s3_server.url)
    name = data_files(table)[1].file_path.rsplit("/", 1)[1]
    rule = proxy.inject(SlowFirstByte(3600), path=name)
    config = {**s3_catalog.properties_for_users, "s3.endpoint": proxy.url}
    with WarmProcess("-c", READING, json.dumps(config)) as process:
        while not rule.hits:
            assert process.poll() is None, process.finish().stderr
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        ended = process.finish()
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "Exception ignored" not in ended.stderr
