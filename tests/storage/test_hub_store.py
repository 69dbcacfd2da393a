"""The Hugging Face hub, by a hub on the loopback."""

from __future__ import annotations

import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from servers.hub import HubServer
from store_contract import FORMATS, ROWS, Place, StoreContract, file_of, ids, read, table_of

from headrace import StructuredDataset
from headrace.errors import MissingExtraError, NothingFoundError, OptionError, ReadError

REPO = "owner/name"


@pytest.fixture(autouse=True)
def _hub_of_the_environment(
    hub_server: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub_server.url)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


class TestHub(StoreContract):
    @pytest.fixture
    def place(self, hub_server: HubServer) -> Place:
        hub_server.make_repo(REPO)
        return Place(
            f"hf://datasets/{REPO}/top",
            lambda path, body: hub_server.put(REPO, f"top/{path}", body, lfs=len(body) > 1500),
        )


@pytest.mark.parametrize("lfs", [True, False])
def test_files_small_and_large(hub_server: HubServer, lfs: bool) -> None:
    hub_server.make_repo(REPO)
    for format in FORMATS:
        hub_server.put(REPO, f"data/a.{format}", file_of(format), lfs=lfs)
    for format in FORMATS:
        got = read(f"hf://datasets/{REPO}/data", format)
        assert got == table_of().to_pydict()


def test_revisions(hub_server: HubServer) -> None:
    hub_server.make_repo(REPO)
    first = hub_server.put(REPO, "a.parquet", file_of(first=0))
    hub_server.put(REPO, "a.parquet", file_of(first=100))
    hub_server.put_all(REPO, {"a.parquet": file_of(first=200)}, branch="dev")
    hub_server.put_all(REPO, {"a.parquet": file_of(first=300)}, branch="refs/convert/parquet")
    root = f"hf://datasets/{REPO}"
    for revision, begin in (
        ("", 100),
        ("@main", 100),
        (f"@{first}", 0),
        ("@dev", 200),
        ("@refs/convert/parquet", 300),
        ("@refs%2Fconvert%2Fparquet", 300),
    ):
        assert ids(f"{root}{revision}")[0] == begin, revision
        assert ids(f"{root}{revision}/a.parquet")[0] == begin, revision
        assert ids(f"{root}{revision}/*.parquet")[0] == begin, revision
    for missing in ("@none", "@" + "0" * 40):
        with pytest.raises(NothingFoundError, match="does not exist"):
            ids(f"{root}{missing}")


def test_a_push_in_between_is_not_seen(hub_server: HubServer) -> None:
    hub_server.make_repo(REPO)
    commit = hub_server.put(REPO, "a.parquet", file_of())
    loader, dataset = StructuredDataset.create_dataloader(f"hf://datasets/{REPO}", num_workers=0)
    hub_server.put(REPO, "a.parquet", file_of(first=500))
    assert [value for batch in loader for value in batch["id"].tolist()] == list(range(ROWS))
    assert dataset.files[0].path == f"hf://datasets/{REPO}@{commit}/a.parquet"


def test_models_and_data_sets_of_one_name(hub_server: HubServer) -> None:
    hub_server.make_repo(REPO)
    hub_server.make_repo(REPO, kind="models")
    hub_server.put(REPO, "a.parquet", file_of())
    hub_server.put(REPO, "b.parquet", file_of(first=100), kind="models")
    assert ids(f"hf://{REPO}")[0] == 100
    both = ids([f"hf://datasets/{REPO}/a.parquet", f"hf://{REPO}/b.parquet"])
    assert sorted(both) == [*range(ROWS), *range(100, 100 + ROWS)]


def test_a_paged_tree(hub_server: HubServer) -> None:
    hub_server.make_repo(REPO)
    hub_server.page_size = 3
    hub_server.put_all(
        REPO, {f"d{i % 2}/{i:02}.parquet": file_of(first=100 * i, rows=2) for i in range(11)}
    )
    assert len(ids(f"hf://datasets/{REPO}")) == 22


def test_a_private_repository(
    hub_server: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub_server.make_repo(REPO, private=True)
    hub_server.tokens.add("hf_right")
    hub_server.put(REPO, "a.parquet", file_of(), lfs=True)
    hub_server.put(REPO, "b.parquet", file_of(first=100), lfs=False)
    path = f"hf://datasets/{REPO}"
    everything = [*range(ROWS), *range(100, 100 + ROWS)]
    for token in (False, "hf_wrong"):
        with pytest.raises(ReadError, match=r"HTTP 401.*check the credentials") as caught:
            ids(path, storage_options={"token": token})
        assert "hf_wrong" not in str(caught.value)
    assert ids(path, storage_options={"token": "hf_right"}) == everything
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert ids(path, storage_options={"token": "hf_right"}) == everything, "an option comes first"
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert ids(path) == everything
    assert ids(path, storage_options={"token": True}) == everything
    monkeypatch.delenv("HF_TOKEN")
    stored = tmp_path / "token"
    stored.write_text("hf_right\n")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(stored))
    assert ids(path) == everything, "the token that the hub's tools have stored"


def test_the_token_stays_with_the_hub(hub_server: HubServer) -> None:
    hub_server.make_repo(REPO, private=True)
    hub_server.tokens.add("hf_right")
    hub_server.put(REPO, "a.parquet", file_of(), lfs=True)
    loader, _ = StructuredDataset.create_dataloader(
        f"hf://datasets/{REPO}", storage_options={"token": "hf_right"}, num_workers=0
    )
    for _ in range(3):
        assert sum(len(batch["id"]) for batch in loader) == ROWS
    assert len(hub_server.cdn.log) > 2
    assert {request.authorization for request in hub_server.cdn.log} == {None}


def test_a_list_that_goes_on_at_another_host(hub_server: HubServer) -> None:
    hub_server.make_repo(REPO, private=True)
    hub_server.tokens.add("hf_right")
    hub_server.put_all(REPO, {f"{i}.parquet": file_of(first=100 * i) for i in range(3)})
    hub_server.page_size = 2
    hub_server.next_pages_at = hub_server.cdn.url
    with pytest.raises(ReadError):
        ids(f"hf://datasets/{REPO}", storage_options={"token": "hf_right"})
    assert {request.authorization for request in hub_server.cdn.log} == {None}
    hub_server.next_pages_at = hub_server.url
    assert len(ids(f"hf://datasets/{REPO}", storage_options={"token": "hf_right"})) == 3 * ROWS


def test_signed_links_that_expire(hub_server: HubServer) -> None:
    hub_server.make_repo(REPO)
    hub_server.put(REPO, "a.parquet", file_of())
    loader, _ = StructuredDataset.create_dataloader(f"hf://datasets/{REPO}", num_workers=0)
    for _ in range(3):
        assert sum(len(batch["id"]) for batch in loader) == ROWS
        hub_server.expire_links()
    assert 403 in {request.status for request in hub_server.cdn.log}


def test_a_signed_link_is_asked_for_once(hub_server: HubServer) -> None:
    hub_server.make_repo(REPO)
    hub_server.put(REPO, "a.parquet", file_of())
    loader, _ = StructuredDataset.create_dataloader(f"hf://datasets/{REPO}", num_workers=0)
    for _ in range(3):
        assert sum(len(batch["id"]) for batch in loader) == ROWS
    assert sum("/resolve/" in request.target for request in hub_server.log) == 1


@pytest.mark.parametrize("path", ["hf://owner", "hf://datasets/owner", "hf://"])
def test_no_path_of_the_hub(path: str) -> None:
    with pytest.raises(OptionError, match="is no path of the hub: hf://datasets/OWNER/NAME"):
        ids(path)


def test_a_repository_that_is_missing(hub_server: HubServer) -> None:
    hub_server.tokens.add("hf_right")
    with pytest.raises(NothingFoundError, match="no/such does not exist"):
        ids("hf://datasets/no/such", storage_options={"token": "hf_right"})
    with pytest.raises(ReadError, match=r"no/such.*HTTP 401.*check the credentials"):
        ids("hf://datasets/no/such")


def test_an_endpoint_that_is_given(hub_server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_server.make_repo(REPO)
    hub_server.put(REPO, "a.parquet", file_of())
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    for name in ("endpoint", "endpoint_url"):
        got = ids(f"hf://datasets/{REPO}", storage_options={name: hub_server.url + "/"})
        assert got == list(range(ROWS))
    with pytest.raises(OptionError, match=r"'tokn'.*known are endpoint, token"):
        ids(f"hf://datasets/{REPO}", storage_options={"tokn": "x"})


def test_a_file_in_the_cache_of_the_hub_is_not_fetched(hub_server: HubServer) -> None:
    hub_server.make_repo(REPO)
    commit = hub_server.put(REPO, "a.parquet", file_of())
    huggingface_hub.hf_hub_download(
        REPO, "a.parquet", repo_type="dataset", revision=commit, endpoint=hub_server.url
    )
    hub_server.cdn.log.clear()
    assert ids(f"hf://datasets/{REPO}") == list(range(ROWS))
    assert not hub_server.cdn.log


def test_a_hub_client_that_is_missing_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"headrace\[hub\]"):
        ids(f"hf://datasets/{REPO}")
