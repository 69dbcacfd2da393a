"""What ``on_error="skip"`` is not for: access that is denied, and files that are others by now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from numbered_rows import NAMES, Source, ids_of, make_loader, put_all
from servers.faults import Answer, Fault, xml_answer
from servers.http_files import HttpServer
from servers.proxy import FaultProxy
from servers.s3 import S3Server

from headrace import AccessDeniedError, FileChangedError, ReadError, StructuredDataset

BUCKET = "skipping"
DENIALS: dict[str, Fault] = {
    "401": Answer(401, {}, b"who are you"),
    "403": xml_answer(403, "AccessDenied"),
    "expired": xml_answer(400, "ExpiredToken"),
}


@pytest.fixture(params=["s3", "http"])
def source(request: pytest.FixtureRequest, proxy_to: Callable[..., FaultProxy]) -> Source:
    if request.param == "s3":
        s3_server: S3Server = request.getfixturevalue("s3_server")
        s3_server.make_bucket(BUCKET)
        put_all(lambda name, body: s3_server.put(BUCKET, name, body))
        return Source("s3", proxy_to(s3_server.url), BUCKET)
    http_server: HttpServer = request.getfixturevalue("http_server")
    put_all(lambda name, body: http_server.put(f"{BUCKET}/{name}", body))
    return Source("http", proxy_to(http_server.url), BUCKET)


@pytest.mark.parametrize(("kind", "workers"), [("401", 0), ("403", 2), ("expired", 0)])
def test_denied_rows_are_an_error(source: Source, kind: str, workers: int) -> None:
    loader = source.loader(on_error="skip", num_workers=workers)
    source.proxy.inject(DENIALS[kind], path=NAMES[2], ranged=True)
    with pytest.raises(AccessDeniedError, match=rf"{NAMES[2]}.*check the credentials"):
        ids_of(loader)
    assert loader.stats()["skipped_chunks"] == []


@pytest.mark.parametrize("denial", DENIALS.values(), ids=DENIALS)
def test_a_denied_footer_is_an_error(source: Source, denial: Fault) -> None:
    source.proxy.inject(denial, path=NAMES[2], ranged=True)
    with pytest.raises(AccessDeniedError, match=NAMES[2]):
        source.loader(on_error="skip")


def test_denied_access_is_a_read_error_and_a_permission_error() -> None:
    assert issubclass(AccessDeniedError, ReadError)
    assert issubclass(AccessDeniedError, PermissionError)


def test_credentials_that_are_not_found_are_an_error(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody answers where the role of a machine is asked for."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    options = {"endpoint_url": s3_server.url, "region": "us-east-1"}
    with pytest.raises(AccessDeniedError, match="no credentials were got"):
        make_loader(f"s3://{BUCKET}/", storage_options=options, retries=1, on_error="skip")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_local_file_that_changed_is_an_error(tmp_path: Path, workers: int) -> None:
    put_all(lambda name, body: (tmp_path / name).write_bytes(body))
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, num_workers=workers, on_error="skip", output_format="numpy"
    )
    changed = tmp_path / NAMES[1]
    changed.write_bytes(changed.read_bytes()[:-50])
    with pytest.raises(FileChangedError, match=NAMES[1]):
        ids_of(loader)
