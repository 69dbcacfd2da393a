"""Azure's blobs, by their own protocols."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from servers.azure import AzureServer
from store_contract import ROWS, Place, StoreContract, file_of, ids

from headrace.errors import NothingFoundError, OptionError, ReadError


def container_of(server: AzureServer) -> str:
    return server.make_container(f"az-{uuid4().hex[:12]}")


class TestAzure(StoreContract):
    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, azure_server: AzureServer) -> Place:
        container = container_of(azure_server)
        return Place(
            f"az://{container}/top",
            lambda path, body: azure_server.put(container, f"top/{path}", body),
            {"storage_options": {"connection_string": azure_server.connection_string}},
        )


@pytest.fixture(scope="module")
def container(azure_server: AzureServer) -> str:
    name = container_of(azure_server)
    azure_server.put(name, "d/a.parquet", file_of())
    azure_server.put(name, "d/b.orc", file_of("orc"))
    return name


def ways_in(server: AzureServer) -> dict[str, dict[str, Any]]:
    """What people write to be let in, with adlfs and with obstore."""
    place = {"account_name": server.account, "endpoint_url": server.url}
    signature = server.sas_token()
    return {
        "account_key": {**place, "account_key": server.key},
        "credential that is a key": {**place, "credential": server.key},
        "sas_token": {**place, "sas_token": signature},
        "sas_token with ?": {**place, "sas_token": f"?{signature}"},
        "credential that is a signature": {**place, "credential": signature},
        "account_url": {
            "account_name": server.account,
            "account_url": server.url,
            "account_key": server.key,
        },
        "connection_string": {"connection_string": server.connection_string},
        "connection_string with a signature": {
            "connection_string": f"AccountName={server.account};BlobEndpoint={server.url};"
            f"SharedAccessSignature={signature}"
        },
    }


def test_ways_to_be_let_in(azure_server: AzureServer, container: str) -> None:
    for way, options in ways_in(azure_server).items():
        for path, format in (("d/a.parquet", "parquet"), ("d/b.orc", "orc")):
            got = ids(f"az://{container}/{path}", format, storage_options=options)
            assert got == list(range(ROWS)), way


@pytest.mark.parametrize("protocol", ["abfss", "abfs", "az"])
def test_the_account_in_the_path(azure_server: AzureServer, container: str, protocol: str) -> None:
    options = {"account_key": azure_server.key, "endpoint_url": azure_server.url}
    host = f"{azure_server.account}.dfs.core.windows.net"
    for path in ("d/a.parquet", "d/*.parquet"):
        got = ids(f"{protocol}://{container}@{host}/{path}", storage_options=options)
        assert got == list(range(ROWS))


def test_the_account_in_the_path_is_shown(azure_server: AzureServer, container: str) -> None:
    host = f"{azure_server.account}.dfs.core.windows.net"
    path = f"abfss://{container}@{host}/none"
    options = {"account_key": azure_server.key, "endpoint_url": azure_server.url}
    with pytest.raises(NothingFoundError, match=f"{container}@{azure_server.account}"):
        ids(path, storage_options=options)


def test_no_account_is_named() -> None:
    with pytest.raises(ReadError, match=r"c/a.parquet: .*Account must be specified"):
        ids("az://c/a.parquet")


AMBIENT = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ENDPOINT")


def test_the_environment(
    azure_server: AzureServer, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"az://{container}/d/a.parquet"
    with monkeypatch.context() as patch:
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure_server.connection_string)
        assert ids(path) == list(range(ROWS))
    values = (azure_server.account, azure_server.key, azure_server.url)
    with monkeypatch.context() as patch:
        for name, value in zip(AMBIENT, values, strict=True):
            patch.setenv(name, value)
        assert ids(path) == list(range(ROWS))
    with monkeypatch.context() as patch:
        patch.setenv("AZURE_STORAGE_ACCOUNT_NAME", azure_server.account)
        patch.setenv("AZURE_STORAGE_SAS_TOKEN", azure_server.sas_token())
        patch.setenv("AZURE_STORAGE_ENDPOINT", azure_server.url)
        assert ids(path) == list(range(ROWS))


def test_what_is_given_is_not_mixed_with_the_environment(
    azure_server: AzureServer, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"az://{container}/d/a.parquet"
    for name in ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN"):
        monkeypatch.setenv(name, "bm90IGdvb2Q=")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=no;AccountKey=bm8=")
    for way, options in ways_in(azure_server).items():
        assert ids(path, storage_options=options) == list(range(ROWS)), way


def test_a_container_that_is_missing(azure_server: AzureServer) -> None:
    options = {"connection_string": azure_server.connection_string}
    for path in ("az://no-such-container/a.parquet", "az://no-such-container/d"):
        with pytest.raises(NothingFoundError, match="no-such-container"):
            ids(path, storage_options=options)


@pytest.mark.parametrize("secret", ["account_key", "sas_token"])
def test_access_that_is_denied(azure_server: AzureServer, container: str, secret: str) -> None:
    wrong = {
        "account_key": "d3Jvbmcga2V5IG9mIHNvbWVib2R5",
        "sas_token": azure_server.sas_token().replace("sp=rl", "sp=rwl"),
    }
    options = {"account_name": azure_server.account, "endpoint_url": azure_server.url}
    with pytest.raises(ReadError, match="check the credentials") as caught:
        ids(f"az://{container}/d", storage_options={**options, secret: wrong[secret]})
    assert "1 attempt in" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"connection_string": "AccountKey=x"}, "names no AccountName"),
        ({"credential": object()}, "must be a key or a SAS token"),
        ({"anon": "perhaps"}, "failed to parse .* as boolean"),
        ({"acount_key": "hunter2"}, "'acount_key' is not valid"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        ids("az://c/a.parquet", storage_options={"account_name": "a", **options})
    assert "hunter2" not in str(caught.value)
