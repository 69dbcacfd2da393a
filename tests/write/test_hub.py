"""``push_to_hub``: folders of tars on a hub, killed in the middle and continued."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from servers.hub import HubServer
from tars_written import numbered, write

import headrace
from headrace import NothingFoundError, OptionError, WriteError, push_to_hub

PATIENCE_S = 60.0
PUSH = """
import sys
from headrace import push_to_hub
print(push_to_hub(sys.argv[1], "owner/tars", path_in_repo="train", endpoint=sys.argv[2], token="t"))
"""


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    write(tmp_path / "tars", numbered(40), shard_samples=10)
    (tmp_path / "tars" / ".hidden").write_text("not sent")
    (tmp_path / "tars" / "shard_00004.tar.partial").write_text("not sent")
    return tmp_path / "tars"


def pushing(tars: Path, hub: HubServer) -> subprocess.Popen[str]:
    """Push in a process of its own: huggingface_hub reads its settings when it is imported."""
    return subprocess.Popen(
        [sys.executable, "-c", PUSH, tars, hub.url],
        env=os.environ | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_tars_are_uploaded_and_a_kill_costs_what_was_on_its_way(
    tars: Path, hub_server: HubServer
) -> None:
    third = threading.Event()
    killed = threading.Event()

    def hold(oid: str) -> None:
        if len(hub_server.uploads) == 3:
            third.set()
            killed.wait(PATIENCE_S)
            raise OSError("the client is gone")

    hub_server.tokens.add("t")
    hub_server.hold_upload = hold
    process = pushing(tars, hub_server)
    try:
        assert third.wait(PATIENCE_S)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed.set()
    before = list(hub_server.uploads)
    hub_server.hold_upload = lambda oid: None
    process = pushing(tars, hub_server)
    url, _ = process.communicate(timeout=PATIENCE_S)
    assert url == "hf://datasets/owner/tars/train\n"
    files = [*tars.glob("*.tar"), *tars.glob("*.idx.arrow")]
    sent = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert {*hub_server.uploads} == {*sent}
    assert len(hub_server.uploads) <= len(sent) + len(before) - 2, (
        "an uploaded file was uploaded again"
    )
    uploads = list(hub_server.uploads)
    heads = dict(hub_server._repositories["datasets/owner/tars"].heads)
    process = pushing(tars, hub_server)
    process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, hub_server.uploads) == (0, uploads)
    assert hub_server._repositories["datasets/owner/tars"].heads == heads
    options = {"endpoint": hub_server.url, "token": "t"}
    dataset = headrace.TarDataset(url.strip(), storage_options=options)
    assert dataset.num_rows == 40
    there = {entry.partition("/")[2] for entry in tree(hub_server)}
    assert there == {f"shard_0000{n}.{end}" for n in range(4) for end in ("tar", "idx.arrow")}


def tree(hub: HubServer) -> list[str]:
    repository = hub._repositories["datasets/owner/tars"]
    return list(repository.commits[repository.heads["main"]])


def test_files_that_changed_are_replaced(tmp_path: Path, hub_server: HubServer) -> None:
    hub_server.tokens.add("t")
    (tmp_path / "notes").mkdir()
    shares: list[float] = []
    where: dict[str, Any] = {"endpoint": hub_server.url, "token": "t"}
    for text in ("old!", "new!"):
        (tmp_path / "notes" / "a.json").write_text(text)
        push_to_hub(
            tmp_path / "notes",
            "owner/tars",
            **where,
            progress=lambda _, share: shares.append(share),
        )
    repository = hub_server._repositories["datasets/owner/tars"]
    bodies = [
        commit["a.json"].stored.body for commit in repository.commits.values() if "a.json" in commit
    ]
    assert bodies == [b"old!", b"new!"]
    assert (shares[0], shares[-1]) == (0.0, 1.0)


def test_errors(tmp_path: Path, hub_server: HubServer) -> None:
    where: dict[str, Any] = {"endpoint": hub_server.url, "token": "hf_secret"}
    with pytest.raises(OptionError, match="is not a folder"):
        push_to_hub(tmp_path / "none", "owner/tars", **where)
    with pytest.raises(NothingFoundError, match="no file"):
        push_to_hub(tmp_path, "owner/tars", **where)
    (tmp_path / "a.json").write_text("{}")
    hub_server.make_repo("owner/tars", private=True)
    with pytest.raises(WriteError, match="run the same command again") as refused:
        push_to_hub(tmp_path, "owner/tars", **where)
    assert "hf_secret" not in str(refused.value)
