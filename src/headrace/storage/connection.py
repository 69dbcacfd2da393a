"""Requests to a store: made by its engine, tried again, and with credentials that are good."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeVar
from uuid import uuid4

from headrace.errors import AccessDeniedError, MissingExtraError, OptionError, ReadError
from headrace.process import PerProcess
from headrace.storage.engine import OBJECT_STORES, Engine, Failure, RequestError, connect
from headrace.storage.options import Options, Resolved, resolve
from headrace.storage.redaction import Redaction, of_environment, unsigned_url
from headrace.storage.store import Meter
from headrace.storage.threads import Patience

__all__ = ["Connection", "RetryPolicy"]

T = TypeVar("T")

_LONGEST_DETAIL = 600
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 20.0
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The effort that a request is worth.

    Attributes:
        retries: Times that a request is tried again.
        timeout_s: Seconds that a server may be silent, at the beginning of an answer and within
            it; also the time over which the least rate of an answer is averaged.
        max_elapsed_s: Seconds from its first attempt after which a request is not tried again.
    """

    retries: int = 10
    timeout_s: float = 30.0
    max_elapsed_s: float = 300.0


class _Attempts:
    """The attempts of one request."""

    def __init__(self, policy: RetryPolicy, patience: Patience) -> None:
        self.failed = 0
        self._policy = policy
        self._patience = patience
        self._began = time.monotonic()

    def may_go_on(self) -> bool:
        """Count a failure; sleep and return True if there is to be another attempt.

        The pause grows exponentially and is drawn at random, so that many clients that failed
        together do not come back together. It ends early if the reader gave up or the interpreter
        is shutting down.
        """
        self.failed += 1
        most = min(_FIRST_PAUSE_S * 2 ** min(self.failed - 1, 30), _LONGEST_PAUSE_S)
        until = time.monotonic() + random.uniform(most / 2, most)
        if self.failed > self._policy.retries or until > self._began + self._policy.max_elapsed_s:
            return False
        while (left := until - time.monotonic()) > 0:
            if self._patience.over:
                return False
            time.sleep(min(left, _POLL_S))
        return True

    def __str__(self) -> str:
        seconds = time.monotonic() - self._began
        return f"{self.failed} attempt{'s' if self.failed != 1 else ''} in {seconds:.1f} s"


@dataclass(slots=True)
class _Own:
    """The part of a connection that belongs to one process."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    engine: Engine | None = None
    resolved: Resolved | None = None
    redact: Redaction = field(default_factory=Redaction)


class Connection:
    """The way to a store. It pickles what the user gave; its engine is made where it is used.

    Options may be, or hold, functions: they are called in the process that needs them, before
    what they gave expires, and when the store denies access.

    Args:
        protocol: The part of the store's URLs before ``://``.
        options: Options of the store.
        policy: How often and how long requests are tried.
        signed_urls: For URLs as they are shown, those with their secrets.
        filesystem: A filesystem that the user gives, which is used as it is.
    """

    def __init__(
        self,
        protocol: str,
        options: Options,
        policy: RetryPolicy,
        *,
        signed_urls: Mapping[str, str] | None = None,
        filesystem: Any = None,
    ) -> None:
        self.protocol = protocol
        self._signed = dict(signed_urls or {})
        self._options = options
        self._policy = policy
        self._filesystem = filesystem
        self._name = uuid4().hex
        self._own = PerProcess(_Own)

    def __repr__(self) -> str:
        return f"<connection to {self.protocol}>"

    @property
    def identity(self) -> str:
        """A text that is the same for all readers of a store; a given filesystem has its own."""
        if self._filesystem is not None:
            return self._name
        return store_identity(self.protocol, self._current()[1].options, self._signed)

    @property
    def given(self) -> Mapping[str, Any]:
        """The user's options, by name."""
        return {"storage_options": self._options, "filesystem": self._filesystem}

    @property
    def conditional(self) -> bool:
        """True if reads themselves refuse another version."""
        return self._current()[0].conditional

    def check(self) -> None:
        """Raise an OptionError or a MissingExtraError now; nothing is sent."""
        self._current()

    def request(self, what: str, ask: Callable[[Engine], T], meter: Meter, patience: Patience) -> T:
        """Return what ``ask`` returns, and try it again if need be.

        Errors of clients are not chained, not even as a context that is not shown: their texts
        may hold credentials.

        Args:
            what: What is asked for, to begin an error message with.
            ask: Makes one request.
            meter: Counts requests and retries.
            patience: When it is over, nothing is tried again.

        Raises:
            RequestError: The object is missing, or another version of it is there.
            ReadError: All else.
        """
        attempts = _Attempts(self._policy, patience)
        renewed = False
        while True:
            engine, resolved = self._current()
            meter.add(requests=1)
            try:
                return ask(engine)
            except RequestError as error:
                failed = error
            if failed.failure in (Failure.MISSING, Failure.CHANGED):
                raise RequestError(failed.failure, self._shown(failed))
            if failed.failure is Failure.DENIED and resolved.renewable and not renewed:
                renewed = True
                self._renew(engine)
                attempts.failed += 1
            elif failed.failure is not Failure.TRANSIENT:
                attempts.failed += 1
                raise self._error(what, failed, attempts)
            elif not attempts.may_go_on():
                raise self._error(what, failed, attempts)
            meter.add(retries=1)

    def _error(self, what: str, failed: RequestError, attempts: _Attempts) -> ReadError:
        text = f"{what}: {self._shown(failed)} ({attempts}"
        if failed.failure is Failure.DENIED:
            return AccessDeniedError(
                f"{text}; check the credentials, and whether they have expired)"
            )
        return AccessDeniedError(f"{text})") if failed.keyless else ReadError(f"{text})")

    def _shown(self, failed: RequestError) -> str:
        """Return a client's words without secrets; cut last, for half a secret is not found."""
        own = self._own.get()
        found = own.engine.secrets if own.engine is not None else ()
        text = Redaction({"found": list(found)})(failed.detail)
        return own.redact(text)[:_LONGEST_DETAIL]

    def _current(self) -> tuple[Engine, Resolved]:
        own = self._own.get()
        with own.lock:
            if own.engine is None or (own.resolved is not None and own.resolved.stale):
                self._open(own)
            assert own.engine is not None
            assert own.resolved is not None
            return own.engine, own.resolved

    def _renew(self, denied: Engine) -> None:
        """Get new credentials for the next attempt, unless another thread has just got some."""
        own = self._own.get()
        with own.lock:
            if own.engine is denied:
                self._open(own)

    def _open(self, own: _Own) -> None:
        own.resolved = resolve(self._options)
        options = own.resolved.options
        known = {"before": own.redact.secrets, "around": of_environment(), **self._signed}
        own.redact = Redaction({**known, **options})
        try:
            own.engine = connect(
                self.protocol,
                options,
                self._policy.timeout_s,
                signed_urls=self._signed,
                filesystem=self._filesystem,
            )
            return
        except (OptionError, MissingExtraError) as error:
            kind, text = type(error), own.redact(str(error))
        raise kind(text)


# --- which store a path is in: the same path may be another file at another endpoint

_PLACES = re.compile(r"(?:aws_)?endpoint\w*|account_(?:name|url|host)|base_url")
_IN_STRING = re.compile(r"(?i)(?:AccountName|BlobEndpoint|EndpointSuffix)=[^;]*")
_VARIABLES = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "STORAGE_EMULATOR_HOST",
    "HF_ENDPOINT",
)


def store_identity(
    protocol: str, options: Mapping[str, Any], signed_urls: Mapping[str, str]
) -> str:
    """Return a short text that names a store, without its secrets; credentials do not change it.

    Of a filesystem of fsspec any option may say where files are: there all of them count. So may
    parameters of URLs that are not shown, unless they are known to be signatures.
    """
    known = protocol in OBJECT_STORES or protocol in ("http", "https", "hf")
    places = sorted(_places(options)) if known else [repr(sorted(options.items(), key=str))]
    around = [f"{name}={os.environ.get(name, '')}" for name in _VARIABLES if known]
    hidden = sorted(
        one for one in map(unsigned_url, signed_urls.values()) if one not in signed_urls
    )
    return sha256("\0".join([protocol, *places, *around, *hidden]).encode()).hexdigest()[:16]


def _places(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _places(value)
        elif isinstance(value, str) and _PLACES.fullmatch(name):
            yield f"{name}={value}"
        elif isinstance(value, str) and name == "connection_string":
            yield from _IN_STRING.findall(value)
