"""Requests to a service: made by its engine, tried again, and with credentials that are good."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

from headrace.errors import AccessDeniedError, MissingExtraError, OptionError, ReadError
from headrace.process import PerProcess
from headrace.storage.credentials import Options, Resolved, resolve
from headrace.storage.engines import SIGNED, Engine, Failure, RequestError, connect
from headrace.storage.fetching import Patience
from headrace.storage.identity import hidden_identity, store_identity
from headrace.storage.meter import Meter
from headrace.storage.redaction import Redaction, of_environment
from headrace.storage.retrying import Attempts, RetryPolicy

__all__ = ["Connection"]

T = TypeVar("T")

_LONGEST_DETAIL = 600


@dataclass(slots=True)
class _Own:
    """What one process has of a connection."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    engine: Engine | None = None
    resolved: Resolved | None = None
    redact: Redaction = field(default_factory=Redaction)


class Connection:
    """The way to a store. Pickles what the user gave; its engine is made where it is used.

    Options may be, or hold, functions: they are called in the process that needs them, before
    what they gave expires, and when the store denies access.
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
        self._hidden = hidden_identity(self._signed)
        self._options = options
        self._policy = policy
        self._filesystem = filesystem
        self._name = uuid4().hex
        self._own = PerProcess(_Own)

    def __getstate__(self) -> dict[str, Any]:
        kept = ("protocol", "_options", "_policy", "_signed", "_hidden", "_filesystem", "_name")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._own = PerProcess(_Own)

    def __repr__(self) -> str:
        return f"<connection to {self.protocol}>"

    @property
    def identity(self) -> str:
        """The same for all who reach the same store; of a filesystem that was given, its own."""
        if self._filesystem is not None:
            return self._name
        resolved = self._current()[1]
        return store_identity(self.protocol, resolved.options, self._hidden)

    @property
    def given(self) -> Mapping[str, Any]:
        """What the user gave, by the name of its option."""
        return {"storage_options": self._options, "filesystem": self._filesystem}

    @property
    def conditional(self) -> bool:
        """Whether reads themselves refuse another version."""
        return self._current()[0].conditional

    def check(self) -> None:
        """Raise an OptionError or a MissingExtraError now; nothing is sent."""
        self._current()

    def request(self, what: str, ask: Callable[[Engine], T], meter: Meter, patience: Patience) -> T:
        """What ``ask`` returns. MISSING and CHANGED come as RequestErrors, the rest as ReadErrors.

        Errors of clients are not chained, not even as a context that is not shown: their texts
        may hold credentials.
        """
        attempts = Attempts(self._policy, patience)
        renewed = False
        while True:
            engine, resolved = self._current()
            meter.add(requests=1)
            try:
                return ask(engine)
            except RequestError as error:
                failed = error
            if failed.failure in (Failure.MISSING, Failure.CHANGED):
                raise RequestError(failed.failure, self._said(failed))
            if failed.failure is Failure.DENIED and resolved.renewable and not renewed:
                renewed = True
                self._renew(engine)
                attempts.failed += 1
            elif failed.failure is not Failure.TRANSIENT:
                attempts.failed += 1
                raise self._error(what, failed, attempts)
            elif not attempts.may_go_on(failed.retry_after_s):
                raise self._error(what, failed, attempts)
            meter.add(retries=1)

    def _error(self, what: str, failed: RequestError, attempts: Attempts) -> ReadError:
        said = f"{what}: {self._said(failed)} ({attempts.told}"
        if failed.failure is Failure.DENIED:
            return AccessDeniedError(
                f"{said}; check the credentials, and whether they have expired)"
            )
        return AccessDeniedError(f"{said})") if failed.keyless else ReadError(f"{said})")

    def _said(self, failed: RequestError) -> str:
        """What a client said; cut only here, or half of a secret would not be known as one."""
        own = self._own.get()
        found = own.engine.secrets if own.engine is not None else ()
        said = Redaction({"found": list(found)})(failed.detail)
        return own.redact(said)[:_LONGEST_DETAIL]

    def _current(self) -> tuple[Engine, Resolved]:
        own = self._own.get()
        with own.lock:
            if own.engine is None or (own.resolved is not None and own.resolved.stale):
                self._open(own)
            assert own.engine is not None
            assert own.resolved is not None
            return own.engine, own.resolved

    def _renew(self, denied: Engine) -> None:
        """New credentials for the next attempt, unless another thread has just got some."""
        own = self._own.get()
        with own.lock:
            if own.engine is denied:
                self._open(own)

    def _open(self, own: _Own) -> None:
        own.resolved = resolve(self._options)
        options = own.resolved.options
        known = {"before": own.redact.secrets, "around": of_environment(), **self._signed}
        own.redact = Redaction({**known, **options})
        if self._signed:
            options = {**options, SIGNED: self._signed}
        own.engine = self._connected(options, own.redact)

    def _connected(self, options: Mapping[str, Any], redact: Redaction) -> Engine:
        try:
            return connect(self.protocol, options, self._policy.timeout_s, self._filesystem)
        except (OptionError, MissingExtraError) as error:
            kind, said = type(error), redact(str(error))
        raise kind(said)
