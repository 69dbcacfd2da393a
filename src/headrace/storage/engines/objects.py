"""S3, Google Cloud Storage and Azure by obstore."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.errors import MissingExtraError, OptionError
from headrace.storage.engines.protocol import Failure, RequestError
from headrace.storage.native import NativeLibrary
from headrace.storage.options.azure import azure_options
from headrace.storage.options.gcs import gcs_options
from headrace.storage.options.s3 import bucket_region, s3_options
from headrace.storage.pace import Pace, TooSlowError
from headrace.storage.store import FileStatus

try:
    import obstore
    from obstore import exceptions
    from obstore.store import AzureStore, GCSStore, S3Store
except ImportError:  # said where a store is needed, with the name of its extra
    obstore = None

__all__ = ["ObjectEngine", "StoreEngine"]

_OBSTORE = NativeLibrary("an object store")
_PAGE = 1000
_STATUS = re.compile(r"status code: (\d{3})")
_FOR_KEYS = re.compile(
    r"Error performing (?:PUT|POST) |//169\.254\.169\.254|//metadata\.google\.internal"
)
"""requests that are not for objects, which are neither put nor posted where one reads"""
_LIST = "Error performing list request"
_NAMED_CAUSES = {
    "source: TimedOut": "time-out: the server was silent for too long, or its answer too slow",
    "error: IncompleteBody": "the body ended too early",
    "source: NotPartial": "the server does not answer range requests",
}
"""causes that obstore only names, and what they mean"""
_WHOLE_ANSWER = 3
"""times the time-out that a whole answer may take before its rate is looked at"""
_STAYS_SLOW = 10
"""times the time-out that a connection is taken to be slow after an answer that was"""
_A_DAY_S = 86400.0
_OTHER_CLIENTS = "give a client that knows such keys as filesystem"
"""with empty parts, or ones of dots"""


class StoreEngine:
    """A store of obstore; paths are those of the store."""

    conditional = True

    def __init__(self, store: Any) -> None:
        self._store = store
        self.secrets: Collection[Any] = [getattr(store, "config", None)]

    def resolved(self, location: str) -> str:
        return location

    def status(self, path: str) -> FileStatus | None:
        store, key, root = self._place(path)
        if not key:
            return None
        with _translated():
            return _status(root, obstore.head(store, key))

    def entries(
        self, directory: str, recursive: bool, after: str = ""
    ) -> Iterator[FileStatus | str]:
        store, key, root = self._place(directory)
        with _translated():
            if recursive:
                offset = after.removeprefix(root) or None
                for page in store.list(key or None, offset=offset, chunk_size=_PAGE):
                    yield from (_status(root, meta) for meta in page)
            else:
                found = obstore.list_with_delimiter(store, key or None)
                yield from (_status(root, meta) for meta in found["objects"])
                yield from (root + prefix for prefix in found["common_prefixes"])

    def fetch(
        self, path: str, start: int, stop: int, etag: str | None, size: int | None = None
    ) -> Any:
        store, key, _ = self._place(path)
        return self._get(store, key, (start, stop), etag, size, lambda answer: answer.bytes())

    def _get(
        self,
        store: Any,
        key: str,
        span: tuple[int, int],
        etag: str | None,
        size: int | None,
        read: Callable[[Any], Any],
    ) -> Any:
        """Return the bytes of a span, which ``read`` takes from the answer."""
        start, stop = span
        how: dict[str, Any] = {"range": span}
        if etag is not None and etag.startswith('"'):
            how["if_match"] = etag
        with _translated():
            answer = obstore.get(store, key, options=how)
            if etag is not None and _mark(answer.meta) != etag:
                raise RequestError(Failure.CHANGED, "it has another etag by now")
            if size is not None and int(answer.meta["size"]) != size:
                raise RequestError(Failure.CHANGED, "it has another size by now")
            data = read(answer)
        if len(data) != stop - start:
            detail = f"{len(data)} bytes came, and not {stop - start}"
            raise RequestError(Failure.TRANSIENT, detail)
        return data

    def put(self, file: str, path: str) -> None:
        store, key, _ = self._place(path)
        with _translated(writing=True):
            obstore.put(store, key, Path(file))

    def delete(self, path: str) -> None:
        store, key, _ = self._place(path)
        with _translated(writing=True):
            obstore.delete(store, key)

    def _place(self, path: str) -> tuple[Any, str, str]:
        """The store of a path, its key in there, and what comes before the key."""
        _OBSTORE.use()
        return self._store, path.strip("/"), ""


class ObjectEngine(StoreEngine):
    """A store for each bucket or container, made when it is first asked for.

    obstore can limit the time of a whole answer, whatever its size, but it has no least rate. So an
    answer that takes longer than that is asked for again by a second store without this limit,
    and its bytes are looked at one piece after the other as they come. That takes Python's lock
    for each piece, and therefore is done only while the connection is slow.
    """

    def __init__(self, protocol: str, options: Mapping[str, Any], timeout_s: float) -> None:
        from headrace.storage.engines import OBJECT_STORES

        kind = OBJECT_STORES[protocol]
        if obstore is None:
            raise MissingExtraError.for_extra(kind, f"the client for {protocol}://")
        self._make, self.secrets = _MAKERS[kind](options)
        self._timeout_s = timeout_s
        self._whole_answer_s = _WHOLE_ANSWER * timeout_s
        self._slow_until = 0.0
        self._stores: dict[tuple[str, bool], Any] = {}
        self._lock = threading.Lock()

    def fetch(
        self, path: str, start: int, stop: int, etag: str | None, size: int | None = None
    ) -> Any:
        began = time.monotonic()
        if began >= self._slow_until:
            try:
                return super().fetch(path, start, stop, etag, size)
            except RequestError as error:
                was_cut_off = time.monotonic() - began >= self._whole_answer_s
                if error.failure is not Failure.TRANSIENT or not was_cut_off:
                    raise
                self._note_slowness()
        began = time.monotonic()
        store, key, _ = self._place(path, slow=True)
        data = self._get(store, key, (start, stop), etag, size, self._read_slowly)
        if time.monotonic() - began >= self._whole_answer_s:
            self._note_slowness()
        return data

    def _read_slowly(self, answer: Any) -> bytearray:
        data, pace = bytearray(), Pace(self._timeout_s)
        for piece in answer.stream(min_chunk_size=1):
            data += piece
            pace.add(len(piece))
        return data

    def _note_slowness(self) -> None:
        self._slow_until = time.monotonic() + _STAYS_SLOW * self._timeout_s

    def _place(self, path: str, *, slow: bool = False) -> tuple[Any, str, str]:
        _OBSTORE.use()
        protocol, _, rest = path.partition("://")
        bucket, _, key = rest.partition("/")
        with self._lock:
            if (bucket, slow) not in self._stores:
                limit_s = _A_DAY_S if slow else self._whole_answer_s
                try:
                    store = self._make(bucket, _client(self._timeout_s, limit_s))
                except OptionError:
                    raise
                except (exceptions.BaseError, TypeError, ValueError) as error:
                    raise RequestError(Failure.REFUSED, _detail(error)) from None
                self._stores[bucket, slow] = store
        return self._stores[bucket, slow], key.rstrip("/"), f"{protocol}://{bucket}/"


Maker = tuple[Callable[[str, dict[str, Any]], Any], Collection[Any]]
"""what makes the store of a bucket, and secrets that it found, now or later"""


def _s3(given: Mapping[str, Any]) -> Maker:
    options = s3_options(given)

    def make(bucket: str, client: dict[str, Any]) -> Any:
        config = dict(options.config)
        if not options.region_known:
            config["region"] = bucket_region(bucket)
        return S3Store(
            bucket,
            **config,
            client_options={**client, **options.client},
            retry_config=_NO_RETRY,
            credential_provider=options.keys,
        )

    return make, options.keys.secrets if options.keys is not None else ()


def _gcs(given: Mapping[str, Any]) -> Maker:
    config, how = gcs_options(given)
    token = config.pop("bearer_token", None)
    provider = None if token is None else lambda: {"token": token, "expires_at": None}

    def make(bucket: str, client: dict[str, Any]) -> Any:
        return GCSStore(
            bucket,
            **config,
            client_options={**client, **how},
            retry_config=_NO_RETRY,
            credential_provider=provider,
        )

    return make, ()


def _azure(given: Mapping[str, Any]) -> Maker:
    config, how = azure_options(given)

    def make(place: str, client: dict[str, Any]) -> Any:
        """A container, or ``container@account.dfs.core.windows.net``."""
        container, _, host = place.partition("@")
        account = host.partition(".")[0]
        if account and config.get("account_name", account) != account:
            raise OptionError(
                f"the path is in the account {account}, and storage_options names another"
            )
        mine = {**config, "account_name": account} if account else config
        if not account and not ({"account_name", "use_emulator"} & mine.keys()):
            from os import environ

            if not environ.get("AZURE_STORAGE_ACCOUNT_NAME"):
                raise OptionError(
                    f"az://{container} names no account: give storage_options={{'account_name': "
                    f"...}}, or abfss://{container}@ACCOUNT.dfs.core.windows.net/..."
                )
        return AzureStore(
            container, **mine, client_options={**client, **how}, retry_config=_NO_RETRY
        )

    return make, ()


_MAKERS: dict[str, Callable[[Mapping[str, Any]], Maker]] = {
    "s3": _s3,
    "gcs": _gcs,
    "azure": _azure,
}
_NO_RETRY = {"max_retries": 0, "retry_timeout": timedelta(0)}
"""requests are tried again by us, who count them"""


def _client(timeout_s: float, whole_answer_s: float) -> dict[str, Any]:
    silence = timedelta(seconds=timeout_s)
    return {
        "connect_timeout": silence,
        "read_timeout": silence,
        "timeout": timedelta(seconds=whole_answer_s),
    }


def _status(root: str, meta: Mapping[str, Any]) -> FileStatus:
    return FileStatus(root + meta["path"], int(meta["size"]), _mark(meta))


def _mark(meta: Mapping[str, Any]) -> str | None:
    etag, changed = meta["e_tag"], meta["last_modified"]
    if etag is None:
        return None if changed is None else str(changed.isoformat())
    return etag if etag.endswith('"') else f'"{etag}"'  # Azure quotes it in some answers only


@contextmanager
def _translated(*, writing: bool = False) -> Iterator[None]:
    """Errors of obstore as RequestErrors, by the status that their text tells."""
    try:
        yield
    except TooSlowError as error:
        raise RequestError(Failure.TRANSIENT, str(error)) from None
    except FileNotFoundError as error:
        raise RequestError(Failure.MISSING, _detail(error)) from None
    except exceptions.PreconditionError as error:
        raise RequestError(Failure.CHANGED, _detail(error)) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise RequestError(Failure.DENIED, _detail(error)) from None
    except ValueError as error:
        raise RequestError(Failure.REFUSED, f"{_detail(error)}; {_OTHER_CLIENTS}") from None
    except exceptions.NotSupportedError as error:
        detail = f"the server does not answer range requests: {_detail(error)}"
        raise RequestError(Failure.REFUSED, detail) from None
    except (exceptions.BaseError, OSError) as error:
        detail = _detail(error)
        if "invalid path" in detail:
            raise RequestError(Failure.REFUSED, f"{detail}; {_OTHER_CLIENTS}") from None
        if "redirect without LOCATION" in detail:
            raise RequestError(Failure.REFUSED, detail) from None
        found = _STATUS.search(detail)
        # An object that is missing has an error of its own.
        missing = found is not None and found[1] == "404" and _LIST not in detail
        wants_keys = not writing and (missing or _FOR_KEYS.search(detail) is not None)
        if wants_keys:
            detail = f"no credentials were got: {detail}"
        if wants_keys and found and int(found[1]) < 500:
            raise RequestError(Failure.DENIED, detail) from None
        if found is not None:
            failed = RequestError.of_status(int(found[1]), detail)
            failed.keyless = wants_keys
            raise failed from None
        raise RequestError(Failure.TRANSIENT, detail, keyless=wants_keys) from None


def _detail(error: BaseException) -> str:
    """What obstore says, without the structures that follow, but with the innermost cause."""
    text, _, structures = str(error).partition("\n\nDebug source:")
    causes = re.findall(r'(?:message|error): "([^"]+)"', structures)
    causes += [meaning for name, meaning in _NAMED_CAUSES.items() if name in structures]
    cause = f" ({causes[-1]})" if causes else ""
    return " ".join(text.split()) + cause
