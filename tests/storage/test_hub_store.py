"""The Hugging Face hub, by a hub on the loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from servers.answering import Asked, Reply
from servers.hub import HubServer
from store_contract import FORMATS, ROWS, Place, StoreContract, file_of, ids, read, table_of

from headrace import StructuredDataset
from headrace.errors import NothingFoundError, OptionError, ReadError
from headrace.storage.engines.http_client import Answer, HttpClient
from headrace.storage.engines.hub import HubEngine
from headrace.storage.engines.protocol import RequestError

REPO = "owner/name"


@pytest.fixture(autouse=True)
def _hub_of_the_environment(
    hub_server: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub_server.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


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


def ways_to_give_a_token(folder: Path, token: str) -> dict[str, tuple[dict[str, str], Any]]:
    """Variables of the environment, and storage_options."""
    (folder / "home").mkdir(exist_ok=True)
    (folder / "elsewhere").write_text(f"{token}\n")
    return {
        "HF_TOKEN": ({"HF_TOKEN": token}, {}),
        "old variable": ({"HUGGING_FACE_HUB_TOKEN": token}, {}),
        "option": ({}, {"token": token}),
        "option before the environment": ({"HF_TOKEN": "hf_other"}, {"token": token}),
        "HF_TOKEN_PATH": ({"HF_TOKEN_PATH": str(folder / "elsewhere")}, {}),
        "True": ({"HF_TOKEN": token}, {"token": True}),
    }


def test_a_private_repository(
    hub_server: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub_server.make_repo(REPO, private=True)
    hub_server.tokens.add("hf_right")
    hub_server.put(REPO, "a.parquet", file_of(), lfs=True)
    hub_server.put(REPO, "b.parquet", file_of(first=100), lfs=False)
    path = f"hf://datasets/{REPO}"
    everything = [*range(ROWS), *range(100, 100 + ROWS)]
    for way, (variables, options) in ways_to_give_a_token(tmp_path, "hf_right").items():
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            assert ids(path, storage_options=options) == everything, way
    (tmp_path / "home" / "token").write_text("hf_right")
    assert ids(path) == everything, "what the hub's tools have stored"
    with pytest.raises(ReadError, match=r"HTTP 401.*check the credentials"):
        ids(path, storage_options={"token": False})
    with pytest.raises(ReadError, match=r"HTTP 401.*check the credentials") as caught:
        ids(path, storage_options={"token": "hf_wrong"})
    assert "hf_wrong" not in str(caught.value)


def test_the_token_stays_with_the_hub(hub_server: HubServer) -> None:
    hub_server.make_repo(REPO, private=True)
    hub_server.tokens.add("hf_right")
    hub_server.put(REPO, "a.parquet", file_of(), lfs=True)
    loader, _ = StructuredDataset.create_dataloader(
        f"hf://datasets/{REPO}", storage_options={"token": "hf_right"}, num_workers=0
    )
    for _ in range(3):
        assert sum(len(batch["id"]) for batch in loader) == ROWS
    assert len(hub_server.cdn.seen) > 2
    assert {seen.authorization for seen in hub_server.cdn.seen} == {None}


def test_a_next_page_elsewhere_gets_no_token(hub_server: HubServer, http_server: Any) -> None:
    hub_server.make_repo(REPO)
    hub_server.page_size = 1
    hub_server.put_all(REPO, {f"{i}.parquet": file_of() for i in range(2)})
    inner = hub_server._tree

    def elsewhere(*args: Any) -> Any:
        status, headers, body = inner(*args)
        headers["Link"] = f'<{http_server.url}/tree>; rel="next"'
        return status, headers, body

    hub_server._tree = elsewhere
    with pytest.raises(ReadError):
        ids(f"hf://datasets/{REPO}", storage_options={"token": "hf_right"})
    assert all(seen.authorization is None for seen in http_server.seen)


def test_signed_links_that_expire(hub_server: HubServer) -> None:
    hub_server.make_repo(REPO)
    hub_server.put(REPO, "a.parquet", file_of())
    loader, _ = StructuredDataset.create_dataloader(f"hf://datasets/{REPO}", num_workers=0)
    for _ in range(3):
        assert sum(len(batch["id"]) for batch in loader) == ROWS
        hub_server.expire_links()
    assert 403 in {seen.status for seen in hub_server.cdn.seen}


def test_a_signed_link_is_asked_for_once(hub_server: HubServer) -> None:
    hub_server.make_repo(REPO)
    hub_server.put(REPO, "a.parquet", file_of())
    loader, _ = StructuredDataset.create_dataloader(f"hf://datasets/{REPO}", num_workers=0)
    for _ in range(3):
        assert sum(len(batch["id"]) for batch in loader) == ROWS
    assert sum("/resolve/" in seen.target for seen in hub_server.seen) == 1


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
    with pytest.raises(OptionError, match=r"'tokn'.*did you mean 'token'.*known are endpoint"):
        ids(f"hf://datasets/{REPO}", storage_options={"tokn": "x"})


def test_an_answer_with_other_bytes_is_let_go(hub_server: HubServer) -> None:
    """Its connection is closed, or the next answer on it would begin in the middle of this one."""
    hub_server.make_repo(REPO)
    commit = hub_server.put(REPO, "a.parquet", file_of(), lfs=False)
    engine = HubEngine({}, 30.0)
    plain = hub_server._respond
    answers: list[Answer] = []

    def other_bytes(asked: Asked) -> Reply:
        status, headers, body = plain(asked)
        if "Content-Range" in headers:
            headers["Content-Range"] = "bytes 7-8/9"
        return status, headers, body

    class Noted(HttpClient):
        def send(self, *request: Any) -> Answer:
            answers.append(super().send(*request))
            return answers[-1]

    engine._client = Noted(30.0, headers={}, verify=None)
    hub_server._respond = other_bytes
    with pytest.raises(RequestError, match="were asked for, and bytes 7-8/9 came"):
        engine.fetch(f"hf://datasets/{REPO}@{commit}/a.parquet", 0, 100, None)
    assert answers[-1].status == 206
    assert answers[-1].connection.sock is None
    assert answers[-1].response.isclosed()
