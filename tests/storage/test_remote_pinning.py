"""Objects that are replaced or deleted while they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import fsspec
import pytest
from numbered_rows import ALL_IDS, BODIES, NAMES, ROWS, ids_of, make_loader, parquet_bytes, put_all
from servers.http_files import HttpServer
from servers.proxy import FaultProxy
from servers.s3 import S3Server

from headrace import FileChangedError, StatefulLoader

FOLDER = "pinning"
LAST = NAMES[-1]
OTHER_BODY = parquet_bytes(3 * ROWS, seed=1, sign=-1)
"""of the size of the last file, with negative ids"""
WITH_WORKERS = [("s3", 0), ("s3", 2), ("http", 0), ("http", 2), ("memory", 0)]
"""workers have their own copy of what is in memory, which nobody changes"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the data set lies, and how to change it."""

    folder: str
    put: Callable[[str, bytes], object]
    delete: Callable[[str], object]
    options: dict[str, Any]

    def loader(self, **more: Any) -> StatefulLoader:
        """Reads little ahead, so that the last file is not touched before it is needed."""
        settings = {"prefetch_bytes": "48KiB", "batch_size": 25, "prefetch_factor": 1, **more}
        return make_loader(self.folder, storage_options=self.options, **settings)


@pytest.fixture
def s3_place(s3_server: S3Server) -> Place:
    s3_server.make_bucket(FOLDER)
    return Place(
        f"s3://{FOLDER}",
        lambda name, body: s3_server.put(FOLDER, name, body),
        lambda name: s3_server.delete(FOLDER, name),
        s3_server.storage_options,
    )


@pytest.fixture
def http_place(http_server: HttpServer) -> Place:
    return Place(
        f"{http_server.url}/{FOLDER}",
        lambda name, body: http_server.put(f"{FOLDER}/{name}", body),
        lambda name: http_server.delete(f"{FOLDER}/{name}"),
        {},
    )


@pytest.fixture
def memory_place() -> Iterator[Place]:
    memory = fsspec.filesystem("memory")
    yield Place(
        f"memory://{FOLDER}",
        lambda name, body: memory.pipe(f"/{FOLDER}/{name}", body),
        lambda name: memory.rm(f"/{FOLDER}/{name}"),
        {},
    )
    memory.rm(f"/{FOLDER}", recursive=True)


@pytest.fixture(params=["s3", "http", "memory"])
def place(request: pytest.FixtureRequest) -> Place:
    made: Place = request.getfixturevalue(f"{request.param}_place")
    put_all(made.put)
    return made


def read_until_refused(
    loader: StatefulLoader, change: Callable[[], object]
) -> tuple[list[int], str]:
    """Change something after the first batch; what came before that was noticed, and the error."""
    batches = iter(loader)
    found = ids_of([next(batches)])
    change()

    def read_on() -> None:
        for batch in batches:
            found.extend(ids_of([batch]))

    with pytest.raises(FileChangedError) as caught:
        read_on()
    return found, str(caught.value)


def test_the_other_body_is_of_the_same_size() -> None:
    assert len(OTHER_BODY) == len(BODIES[-1])
    assert BODIES[-1] != OTHER_BODY


@pytest.mark.parametrize(("place", "workers"), WITH_WORKERS, indirect=["place"])
def test_an_object_is_replaced_in_mid_epoch(place: Place, workers: int) -> None:
    loader = place.loader(num_workers=workers)
    found, message = read_until_refused(loader, lambda: place.put(LAST, OTHER_BODY))
    assert f"{place.folder}/{LAST} was written again after it was discovered" in message
    assert "make a new dataset" in message
    assert min(found) >= 0
    assert len(found) == len(set(found))
    if not workers:
        assert found == ALL_IDS[: len(found)]


def test_an_object_that_is_being_read_is_replaced(place: Place) -> None:
    """Its first row groups have been read, and the rest never comes from another version."""
    loader = make_loader(
        f"{place.folder}/{LAST}",
        storage_options=place.options,
        prefetch_bytes="20KiB",
        batch_size=25,
    )
    found, message = read_until_refused(loader, lambda: place.put(LAST, OTHER_BODY))
    assert LAST in message
    assert found == ALL_IDS[3 * ROWS : 3 * ROWS + len(found)]


def test_an_object_of_another_size(place: Place) -> None:
    longer = parquet_bytes(3 * ROWS, 2 * ROWS, sign=-1)
    found, message = read_until_refused(place.loader(), lambda: place.put(LAST, longer))
    assert f"{place.folder}/{LAST}" in message
    assert found == ALL_IDS[: len(found)]


def test_a_shorter_object(place: Place) -> None:
    found, message = read_until_refused(place.loader(), lambda: place.put(LAST, b"PAR1"))
    assert f"{place.folder}/{LAST}" in message
    assert found == ALL_IDS[: len(found)]


@pytest.mark.parametrize(("place", "workers"), WITH_WORKERS, indirect=["place"])
def test_an_object_is_deleted_in_mid_epoch(place: Place, workers: int) -> None:
    loader = place.loader(num_workers=workers)
    _, message = read_until_refused(loader, lambda: place.delete(LAST))
    assert message == f"{place.folder}/{LAST} vanished after it was discovered"
    assert loader.stats()["retries"] == 0


def test_the_same_object_written_again(place: Place) -> None:
    """Where the etag tells of the content it is the same; where of the time, another."""
    loader = place.loader()
    batches = iter(loader)
    found = ids_of([next(batches)])
    place.put(LAST, BODIES[-1])
    if place.folder.startswith("memory"):
        with pytest.raises(FileChangedError, match=LAST):
            ids_of(batches)
    else:
        assert found + ids_of(batches) == ALL_IDS


def test_a_web_server_without_etags(http_place: Place, http_server: HttpServer) -> None:
    """When it was changed tells as much, to the second."""
    http_server.sends_etag = False
    put_all(http_place.put)
    for stored in http_server.files.values():
        object.__setattr__(stored, "modified_s", stored.modified_s - 100)
    loader = http_place.loader()
    found, message = read_until_refused(loader, lambda: http_place.put(LAST, OTHER_BODY))
    assert LAST in message
    assert found == ALL_IDS[: len(found)]


def test_an_object_replaced_between_discovery_and_the_first_epoch(place: Place) -> None:
    loader = place.loader()
    place.put(NAMES[0], parquet_bytes(0, seed=1, sign=-1))
    with pytest.raises(FileChangedError, match=NAMES[0]):
        next(iter(loader))


def test_a_new_epoch_does_not_read_another_version(place: Place) -> None:
    loader = place.loader()
    assert ids_of(loader) == ALL_IDS
    place.put(LAST, OTHER_BODY)
    with pytest.raises(FileChangedError, match=LAST):
        ids_of(loader)
    assert sorted(ids_of(place.loader()))[0] < 0


def test_a_replaced_object_is_not_skipped(place: Place) -> None:
    loader = place.loader(on_error="skip")
    found, message = read_until_refused(loader, lambda: place.put(LAST, OTHER_BODY))
    assert f"{LAST} was written again" in message
    assert found == ALL_IDS[: len(found)]


def test_every_read_of_an_object_names_its_version(
    s3_place: Place, s3_server: S3Server, proxy_to: Callable[..., FaultProxy]
) -> None:
    bodies = zip(NAMES, BODIES, strict=True)
    etags = {f"/{FOLDER}/{name}": s3_server.put(FOLDER, name, body) for name, body in bodies}
    proxy = proxy_to(s3_server.url)
    options = {**s3_place.options, "endpoint_url": proxy.url}
    loader = make_loader(s3_place.folder, storage_options=options)
    assert ids_of(loader) == ALL_IDS
    reads = [request for request in proxy.log if request.range is not None]
    assert len(reads) >= 2 * len(NAMES)  # footers, and rows
    assert {(request.path, request.if_match) for request in reads} == set(etags.items())
    assert len(set(etags.values())) == len(NAMES)
