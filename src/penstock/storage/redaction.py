"""Keeping credentials out of everything that people or files get to see."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit, urlunsplit

__all__ = ["Redaction", "has_secret", "public_url", "without_secrets"]

_HIDDEN = "***"
_USERINFO = re.compile(r"(?<=://)[^/?#\s@]+@")
_SECRET_PARAMETER = re.compile(
    r"(?i)\b((?:x-(?:amz|goog|ms)-[\w-]*|sig|signature|se|sp|skoid|token|access_?token|auth|"
    r"authorization|key|api_?key|secret|password|awsaccesskeyid|googleaccessid|policy|"
    r"key-pair-id|credential|expires)=)[^&\s\"'<>]+"
)
_IN_THE_OPEN = {
    "account_name",
    "addressing_style",
    "anon",
    "endpoint",
    "endpoint_url",
    "expires_at",
    "profile",
    "project",
    "region",
    "region_name",
    "signature_version",
}
_SHORTEST = 4


class Redaction:
    """Hides the values of some options, wherever a text contains them."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self.secrets = frozenset(_strings(options or {}))
        forms = {
            form for secret in self.secrets for form in (secret, quote(secret), quote_plus(secret))
        }
        longest_first = sorted(forms, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def __call__(self, text: str) -> str:
        """The text without credentials: neither those of the options nor those in URLs."""
        if self._secrets is not None:
            text = self._secrets.sub(_HIDDEN, text)
        return without_secrets(text)


def without_secrets(text: str) -> str:
    """A text, or a URL, without userinfo and signatures in the URLs that it contains."""
    return _SECRET_PARAMETER.sub(rf"\1{_HIDDEN}", _USERINFO.sub(f"{_HIDDEN}@", text))


def has_secret(url: str) -> bool:
    """Whether a URL contains something that must not be shown."""
    return without_secrets(url) != url


def public_url(url: str) -> str:
    """A URL without userinfo and without its query, if that holds a signature."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    query = "" if has_secret(f"?{parts.query}") else parts.query
    return urlunsplit((parts.scheme, host, parts.path, query, ""))


def _strings(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, str):
        if len(value) >= _SHORTEST and name not in _IN_THE_OPEN:
            yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(inner, str(key))
    elif isinstance(value, Iterable) and not isinstance(value, bytes | bytearray):
        for inner in value:
            yield from _strings(inner, name)
