"""Files of this machine, of fsspec, and of filesystems that are given as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import fsspec
import pyarrow.fs as pafs
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from obstore.store import LocalStore, MemoryStore, S3Store
from servers.s3 import S3Server
from store_contract import ROWS, Place, StoreContract, file_of, ids

from headrace import StructuredDataset
from headrace.errors import (
    AccessDeniedError,
    FileChangedError,
    NothingFoundError,
    OptionError,
    ReadError,
)


def on_disk(folder: Path) -> Any:
    def put(path: str, body: bytes) -> None:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body)

    return put


class TestPlainPaths(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(str(tmp_path), on_disk(tmp_path))


class TestFileUrls(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(f"file://{tmp_path}", on_disk(tmp_path))


class TestEscapedFileUrls(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(f"file://{tmp_path}", on_disk(tmp_path), encoded=True)


class TestMemory(StoreContract):
    @pytest.fixture
    def place(self, memory: Any) -> Place:
        return Place("memory://bucket", lambda path, body: memory.pipe(f"/bucket/{path}", body))


class Drawer(MemoryFileSystem):
    """A filesystem of the user's own, that needs a password."""

    protocol = "drawer"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self, *, password: str, **options: Any) -> None:
        if password != "open sesame":
            raise PermissionError(f"the password is not {password!r}")
        super().__init__(**options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("drawer://", "memory://", 1))


class TestAProtocolOfTheUsers(StoreContract):
    @pytest.fixture
    def place(self) -> Iterator[Place]:
        fsspec.register_implementation("drawer", Drawer, clobber=True)
        options = {"password": "open sesame"}
        drawer = fsspec.filesystem("drawer", **options)
        yield Place(
            "drawer://top",
            lambda path, body: drawer.pipe(f"/top/{path}", body),
            {"storage_options": options},
        )
        Drawer.store.clear()


class TestGivenFsspecInMemory(StoreContract):
    @pytest.fixture
    def place(self, memory: Any) -> Place:
        put = lambda path, body: memory.pipe(f"/bucket/{path}", body)  # noqa: E731
        return Place("/bucket", put, {"filesystem": memory})


class TestGivenFsspecOnDisk(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(str(tmp_path), on_disk(tmp_path), {"filesystem": LocalFileSystem()})


class TestGivenFsspecFolder(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        files = DirFileSystem(path=str(tmp_path), fs=LocalFileSystem())
        return Place("inner", on_disk(tmp_path / "inner"), {"filesystem": files})


class TestGivenArrowOnDisk(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(str(tmp_path), on_disk(tmp_path), {"filesystem": pafs.LocalFileSystem()})


class TestGivenArrowFolder(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        files = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
        return Place("inner", on_disk(tmp_path / "inner"), {"filesystem": files})


def bucket_of(server: S3Server) -> tuple[str, Any]:
    bucket = server.make_bucket(f"given-{uuid4().hex[:12]}")
    return bucket, lambda path, body: server.put(bucket, path, body)


def arrow_s3(server: S3Server) -> pafs.S3FileSystem:
    return pafs.S3FileSystem(
        access_key=server.key,
        secret_key=server.secret,
        region=server.region,
        endpoint_override=server.url,
    )


def object_store(server: S3Server, bucket: str, **more: Any) -> S3Store:
    return S3Store(
        bucket,
        access_key_id=server.key,
        secret_access_key=server.secret,
        region=server.region,
        endpoint=server.url,
        client_options={"allow_http": True},
        **more,
    )


class TestGivenArrowS3(StoreContract):
    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, s3_server: S3Server) -> Place:
        bucket, put = bucket_of(s3_server)
        return Place(bucket, put, {"filesystem": arrow_s3(s3_server)})


class TestGivenObjectStoreWithPrefix(StoreContract):
    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, s3_server: S3Server) -> Place:
        bucket, put = bucket_of(s3_server)
        put_inside = lambda path, body: put(f"deep/er/top/{path}", body)  # noqa: E731
        store = object_store(s3_server, bucket, prefix="deep/er")
        return Place("top", put_inside, {"filesystem": store})


class TestGivenObjectStoreOnDisk(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        store = LocalStore(str(tmp_path))
        return Place("top", on_disk(tmp_path / "top"), {"filesystem": store})


class TestGivenObjectStoreInMemory(StoreContract):
    @pytest.fixture
    def place(self) -> Place:
        store = MemoryStore()
        put = lambda path, body: store.put(f"top/{path}", body)  # noqa: E731
        return Place("top", put, {"filesystem": store})


@pytest.mark.parametrize("kind", ["obstore", "pyarrow", "fsspec"])
def test_process_workers_of_a_given_filesystem(
    s3_server: S3Server, tmp_path: Path, kind: str
) -> None:
    bucket, put = bucket_of(s3_server)
    for index in range(3):
        put(f"d/{index}.parquet", file_of(first=100 * index))
        on_disk(tmp_path)(f"d/{index}.parquet", file_of(first=100 * index))
    path, files = {
        "obstore": ("d", object_store(s3_server, bucket)),
        "pyarrow": (f"{bucket}/d", arrow_s3(s3_server)),
        "fsspec": (str(tmp_path / "d"), LocalFileSystem()),
    }[kind]
    got = ids(path, filesystem=files, num_workers=2)
    assert sorted(got) == [100 * index + i for index in range(3) for i in range(ROWS)]


def test_a_bucket_that_is_missing_in_a_given_store(s3_server: S3Server) -> None:
    for path, files in (
        ("d", object_store(s3_server, "no-such-bucket")),
        ("no-such-bucket/d", arrow_s3(s3_server)),
    ):
        with pytest.raises(NothingFoundError, match="d does not exist"):
            ids(path, filesystem=files)


def test_a_protocol_that_refuses() -> None:
    fsspec.register_implementation("drawer", Drawer, clobber=True)
    with pytest.raises(OptionError, match="filesystem for drawer:// cannot be made") as caught:
        ids("drawer://top", storage_options={"password": "hunter2"})
    assert "hunter2" not in repr(caught.value)
    with pytest.raises(OptionError, match="filesystem for drawer:// cannot be made: TypeError"):
        ids("drawer://top")


# --- what filesystems raise


class Moody(MemoryFileSystem):
    """Raises what it is told to when bytes are asked for, so many times."""

    cachable = False
    protocol = "moody"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self) -> None:
        super().__init__()
        self.store.clear()
        self.pseudo_dirs[:] = [""]
        self.pipe("/d/a.parquet", file_of())
        self.error: Exception | None = None
        self.times = 0
        self.asked = 0

    def strike(self) -> None:
        self.asked += 1
        if self.error is not None and self.asked <= self.times:
            raise self.error

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        self.strike()
        return super().cat_file(path, start=start, end=end)

    def _open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        if "r" in mode:
            self.strike()
        return super()._open(path, mode, **more)


class NoCredentialsError(Exception):
    """As botocore calls it."""


IN_VAIN: dict[str, tuple[Exception, type[Exception]]] = {
    type(error).__name__: (error, kind)
    for error, kind in (
        (FileNotFoundError("gone"), FileChangedError),
        (PermissionError("not you"), AccessDeniedError),
        (NoCredentialsError("not found"), AccessDeniedError),
        (NotImplementedError("not here"), ReadError),
        (ValueError("no such value"), ReadError),
        (TypeError("not a str"), ReadError),
        (KeyError("size"), ReadError),
        (AttributeError("no such attribute"), ReadError),
        (IsADirectoryError("a directory"), ReadError),
    )
}


def as_arrow(files: Moody) -> pafs.FileSystem:
    return pafs.PyFileSystem(pafs.FSSpecHandler(files))


@pytest.mark.parametrize("given", [lambda files: files, as_arrow], ids=["fsspec", "pyarrow"])
@pytest.mark.parametrize("name", IN_VAIN)
def test_what_is_in_vain_is_not_tried_again(name: str, given: Any) -> None:
    error, kind = IN_VAIN[name]
    files = Moody()
    loader, _ = StructuredDataset.create_dataloader(
        "/d", num_workers=0, filesystem=given(files), retries=5
    )
    files.error, files.times, files.asked = error, 1000, 0
    with pytest.raises(kind, match=r"a\.parquet") as caught:
        list(loader)
    assert files.asked == 1
    assert type(caught.value) is kind


@pytest.mark.parametrize("given", [lambda files: files, as_arrow], ids=["fsspec", "pyarrow"])
@pytest.mark.parametrize(
    "error",
    [OSError("broken pipe"), TimeoutError("too late"), ConnectionResetError("reset")],
    ids=lambda error: type(error).__name__,
)
def test_what_may_pass_is_tried_again(error: Exception, given: Any) -> None:
    files = Moody()
    loader, _ = StructuredDataset.create_dataloader(
        "/d", num_workers=0, filesystem=given(files), retries=5
    )
    files.error, files.times, files.asked = error, 2, 0
    assert [value for batch in loader for value in batch["id"].tolist()] == list(range(ROWS))
    assert files.asked == 3
    assert loader.stats()["retries"] == 2
