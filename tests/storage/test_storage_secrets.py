"""Canaries in every option of every protocol, where all goes well."""

# ruff: noqa: F811  # arguments of tests are named like the fixtures that they are

from __future__ import annotations

import os
import pickle
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import fsspec
import pytest
from secrets_given import of_http, of_s3, open_http, vault  # noqa: F401  # fixtures
from secrets_searched import (  # noqa: F401  # fixtures
    CANARIES,
    MARK,
    PASSWORD,
    SECRET,
    TOKEN,
    Output,
    found_in,
    look_at_everything,
    output,
)
from servers.azure import AzureServer
from servers.http_files import HttpServer
from servers.hub import HubServer
from servers.s3 import S3Server
from store_contract import file_of

from headrace import StructuredDataset
from headrace.cli import main
from headrace.storage import Access


def test_s3(
    s3_server: S3Server, output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, case in of_s3(s3_server, s3_server.url).items():
        for variable, value in case.environment.items():
            monkeypatch.setenv(variable, value)
        folder = tmp_path / name
        folder.mkdir()
        look_at_everything(output, case.path, folder, storage_options=case.options)
    workers = {"num_workers": 2, "storage_options": of_s3(s3_server, s3_server.url)["keys"].options}
    look_at_everything(output, case.path, tmp_path, **workers)


def test_azure(azure_server: AzureServer, output: Output, tmp_path: Path) -> None:
    """Its key is its own; it is no canary until it is made one here."""
    container = azure_server.make_container(f"secrets-{uuid4().hex[:12]}")
    azure_server.put(container, "d/a.parquet", file_of())
    place = {"account_name": azure_server.account, "endpoint_url": azure_server.url}
    signature = azure_server.sas_token()
    private = {azure_server.key, signature.rpartition("sig=")[2]}
    CANARIES.update(private)
    try:
        for number, options in enumerate(
            (
                {**place, "account_key": azure_server.key},
                {**place, "sas_token": signature},
                {"connection_string": azure_server.connection_string},
            )
        ):
            folder = tmp_path / str(number)
            folder.mkdir()
            look_at_everything(output, f"az://{container}/d", folder, storage_options=options)
        output.check()
    finally:
        CANARIES.difference_update(private)


def test_gcs(s3_server: S3Server, output: Output, tmp_path: Path) -> None:
    bucket = s3_server.make_bucket(f"secrets{uuid4().hex[:12]}")
    s3_server.put(bucket, "d/a.parquet", file_of())
    for name in ("token", "bearer_token"):
        (tmp_path / name).mkdir()
        options = {"base_url": s3_server.url, name: TOKEN}
        look_at_everything(output, f"gs://{bucket}/d", tmp_path / name, storage_options=options)


@pytest.mark.parametrize("name", list(of_http("http://x")))
def test_http(open_http: HttpServer, output: Output, tmp_path: Path, name: str) -> None:
    case = of_http(open_http.url)[name]
    look_at_everything(output, case.path, tmp_path, storage_options=case.options)


@pytest.mark.parametrize("way", ["option", "function", "environment"])
def test_hub(
    hub_server: HubServer,
    output: Output,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub_server.url)
    hub_server.tokens.add(TOKEN)
    hub_server.make_repo("me/data", private=True)
    hub_server.put("me/data", "d/a.parquet", file_of())
    options = {"option": {"token": TOKEN}, "function": lambda: {"token": TOKEN}}.get(way)
    if way == "environment":
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    look_at_everything(output, "hf://datasets/me/data", tmp_path, storage_options=options)


@pytest.mark.parametrize(
    "options",
    [
        {"combination": TOKEN},
        {"combination": {"left": [SECRET], "right": TOKEN.encode()}},
        lambda: {"combination": TOKEN},
    ],
)
def test_a_filesystem_of_the_users(
    vault: str, output: Output, tmp_path: Path, options: Any
) -> None:
    look_at_everything(output, vault, tmp_path, storage_options=options)
    given = options() if callable(options) else options
    files = fsspec.filesystem("vault", **given)
    look_at_everything(output, "/d", tmp_path, filesystem=files)
    output.add("access", Access(filesystem=files))
    output.add("access", Access(storage_options=given))


# --- what goes wrong


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_the_command_line(open_http: HttpServer, output: Output, more: list[str]) -> None:
    host = open_http.url.removeprefix("http://")
    login = quote(PASSWORD, safe="")
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        assert main(["inspect", f"http://me:{login}@{host}/d", *more]) == 0
        assert f"{open_http.url}/d" in out.getvalue()
        for ending in ("none", "d/*.orc", "none?sig=" + TOKEN, "[x"):
            assert main(["inspect", f"http://me:{login}@{host}/{ending}", *more]) != 0
        open_http.access.users.clear()
        assert main(["inspect", f"http://me:{login}@{host}/d", *more]) != 0
    output.add("standard output", out.getvalue())
    output.add("standard error", err.getvalue())


# --- the words themselves


def test_a_dataset_carries_what_it_was_given_and_nothing_else_does(
    s3_server: S3Server, output: Output
) -> None:
    """The canaries are where they have to be: this would fail if they were lost on the way."""
    case = of_s3(s3_server, s3_server.url)["keys"]
    dataset = StructuredDataset(case.path, storage_options=case.options)
    assert found_in(pickle.dumps(dataset))
    assert not found_in(pickle.dumps(dataset.plan()))
    output.add("environment", repr([name for name in os.environ if MARK in name]))
