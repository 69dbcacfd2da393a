"""Requests to a service: made by its engine, tried again, and with credentials that are good."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from penstock.errors import ReadError
from penstock.storage.credentials import Options, Resolved, resolve
from penstock.storage.engines import SIGNED, Engine, Failure, RequestError, connect
from penstock.storage.meter import Meter
from penstock.storage.redaction import Redaction
from penstock.storage.retrying import Attempts, RetryPolicy

__all__ = ["Connection"]

T = TypeVar("T")


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
        self._options = options
        self._policy = policy
        self._filesystem = filesystem
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._engine: Engine | None = None
        self._resolved: Resolved | None = None
        self._redact = Redaction()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("protocol", "_options", "_policy", "_signed", "_filesystem")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __repr__(self) -> str:
        return f"<connection to {self.protocol}>"

    @property
    def conditional(self) -> bool:
        """Whether reads themselves refuse another version."""
        return self._current()[0].conditional

    def check(self) -> None:
        """Raise an OptionError or a MissingExtraError now; nothing is sent."""
        self._current()

    def request(self, what: str, ask: Callable[[Engine], T], meter: Meter) -> T:
        """What ``ask`` returns. MISSING and CHANGED come as RequestErrors, the rest as ReadErrors.

        Errors of clients are not chained: their texts may hold credentials.
        """
        attempts = Attempts(self._policy)
        renewed = False
        while True:
            engine, resolved = self._current()
            meter.add(requests=1)
            try:
                return ask(engine)
            except RequestError as error:
                if error.failure in (Failure.MISSING, Failure.CHANGED):
                    raise RequestError(error.failure, self._redact(error.detail)) from None
                failed = error
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
        said = self._redact(failed.detail)
        advice = ""
        if failed.failure is Failure.DENIED:
            advice = "; check the credentials, and whether they have expired"
        return ReadError(f"{self._redact(what)}: {said} ({attempts.told}{advice})")

    def _current(self) -> tuple[Engine, Resolved]:
        if self._process != os.getpid():
            self._forget()
        with self._lock:
            if self._engine is None or (self._resolved is not None and self._resolved.stale):
                self._open()
            assert self._engine is not None
            assert self._resolved is not None
            return self._engine, self._resolved

    def _renew(self, denied: Engine) -> None:
        """New credentials for the next attempt, unless another thread has just got some."""
        with self._lock:
            if self._engine is denied:
                self._open()

    def _open(self) -> None:
        self._resolved = resolve(self._options)
        options = self._resolved.options
        self._redact = Redaction({"before": self._redact.secrets, **options, **self._signed})
        if self._signed:
            options = {**options, SIGNED: self._signed}
        self._engine = connect(self.protocol, options, self._policy.timeout_s, self._filesystem)
