"""Tests that the servers of Azure and Hugging Face answer the clients that people use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import obstore
import pytest
from huggingface_hub import HfApi, HfFileSystem
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
from obstore.exceptions import BaseError
from obstore.store import AzureStore

from servers.azure import AzureServer
from servers.faults import INTERNAL_ERROR
from servers.hub import HubServer
from servers.processes import TESTS, ServerFailure, ServerProcess, answers, ask
from servers.proxy import FaultProxy


def azure_store(url: str, container: str, **credentials: str) -> AzureStore:
    return AzureStore(
        container,
        endpoint=url,
        account_name=AzureServer.account,
        client_options={"allow_http": True},
        **credentials,
    )


def test_azure_blobs_are_read_with_key_and_signature(azure_server: AzureServer) -> None:
    azure_server.make_container("plain")
    first = azure_server.put("plain", "a/b c.bin", b"0123456789")
    assert azure_server.put("plain", "a/b c.bin", b"other") != first
    for credentials in (
        {"account_key": azure_server.key},
        {"sas_key": azure_server.sas_token()},
    ):
        store = azure_store(azure_server.url, "plain", **credentials)
        (entry,) = obstore.list(store).collect()
        assert (entry["path"], entry["size"]) == ("a/b c.bin", 5)
        assert bytes(obstore.get_range(store, "a/b c.bin", start=1, length=2)) == b"th"
    azure_server.delete("plain", "a/b c.bin")
    assert obstore.list(store).collect() == []


def test_azure_refuses_a_wrong_key_and_an_expired_signature(azure_server: AzureServer) -> None:
    azure_server.make_container("closed")
    azure_server.put("closed", "a", b"1")
    expired = azure_server.sas_token(expiry="2020-01-01T00:00:00Z")
    for credentials in ({"account_key": "d3Jvbmc="}, {"sas_key": expired}):
        with pytest.raises(BaseError, match="403"):
            obstore.get(azure_store(azure_server.url, "closed", **credentials), "a")


def test_azure_through_the_proxy(
    azure_server: AzureServer, proxy_to: Callable[..., FaultProxy]
) -> None:
    azure_server.make_container("proxied")
    azure_server.put("proxied", "a", bytes(100_000))
    proxy = proxy_to(azure_server.url)
    rule = proxy.inject(INTERNAL_ERROR, first=1)
    store = azure_store(
        f"{proxy.url}/{azure_server.account}", "proxied", account_key=AzureServer.key
    )
    assert len(obstore.get_range(store, "a", start=0, length=50_000)) == 50_000
    assert (rule.hits, proxy.log[1].key_id) == (1, azure_server.account)
    assert proxy.log[1].body_bytes == 50_000
    assert proxy.log[1].range == "bytes=0-49999"


def test_hub_lists_in_pages_and_keeps_commits(hub_server: HubServer) -> None:
    old = hub_server.make_repo("ada/rows")
    names = [f"data/part-{index}.parquet" for index in range(5)]
    new = hub_server.put_all("ada/rows", {name: name.encode() for name in names})
    hub_server.put("ada/rows", "README.md", b"read me", lfs=False)
    hub_server.page_size = 2
    api = HfApi(endpoint=hub_server.url, token=False)
    assert api.dataset_info("ada/rows", revision=new).sha == new
    tree = list(api.list_repo_tree("ada/rows", repo_type="dataset", recursive=True))
    assert [entry.path for entry in tree] == ["README.md", "data", *names]
    assert tree[2].lfs.size == tree[2].size == len(names[0])
    pages = [request for request in hub_server.log if "/tree/" in request.target]
    assert len(pages) == 4
    assert list(api.list_repo_tree("ada/rows", repo_type="dataset", revision=old)) == []
    with pytest.raises(RevisionNotFoundError):
        api.dataset_info("ada/rows", revision="nowhere")


def test_hub_sends_large_files_elsewhere(hub_server: HubServer) -> None:
    hub_server.tokens.add("hf_secret")
    hub_server.make_repo("ada/rows", private=True)
    sha = hub_server.put("ada/rows", "big.bin", b"0123456789")
    hub_server.put("ada/rows", "small.txt", b"0123456789", lfs=False)
    filesystem = HfFileSystem(
        endpoint=hub_server.url,
        token="hf_secret",
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    for name in ("big.bin", "small.txt"):
        with filesystem.open(f"datasets/ada/rows/{name}") as file:
            file.seek(2)
            assert file.read(3) == b"234"
    target = f"/datasets/ada/rows/resolve/{sha}/big.bin"
    bearer = {"Authorization": "Bearer hf_secret"}
    status, headers, _ = ask(hub_server.port, "HEAD", target, headers=bearer)
    assert (status, headers["x-repo-commit"], headers["x-linked-size"]) == (302, sha, "10")
    link = headers["location"].removeprefix(hub_server.cdn.url)
    assert ask(hub_server.cdn.port, "GET", link, headers={"Range": "bytes=-2"})[2] == b"89"
    hub_server.expire_links()
    assert ask(hub_server.cdn.port, "GET", link)[0] == 403
    assert {request.authorization for request in hub_server.cdn.log} == {None}


def test_hub_hides_private_repositories(hub_server: HubServer) -> None:
    hub_server.make_repo("ada/rows", private=True)
    assert ask(hub_server.port, "GET", "/api/datasets/ada/rows/revision/main")[0] == 401
    with pytest.raises(RepositoryNotFoundError):
        HfApi(endpoint=hub_server.url, token="hf_wrong").dataset_info("ada/rows")


def test_a_server_that_does_not_start_tells_why() -> None:
    process = ServerProcess("broken", ["sh", "-c", "echo no such luck; exit 3"])
    with pytest.raises(ServerFailure, match="no such luck\nended with status 3"):
        process.wait_until_answers(1)


def test_servers_end_with_the_process_that_started_them() -> None:
    program = (
        "import os, signal\n"
        "from servers.s3 import S3Server\n"
        "print(S3Server().port, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    killed = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE
    )
    assert killed.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while (left := answers(int(killed.stdout))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
