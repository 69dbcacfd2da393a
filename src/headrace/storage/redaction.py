"""Keeping credentials out of everything that people or files get to see."""

from __future__ import annotations

import html
import json
import os
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit, urlunsplit

__all__ = ["Redaction", "has_secret", "of_environment", "public_url", "without_secrets"]

_HIDDEN = "***"
# In paths of Azure a container stands before the @, and no password.
_USERINFO = re.compile(
    r"(?<=://)(?<!\baz://)(?<!\babfs://)(?<!\babfss://)(?<!\badl://)[^/?#\s]+@"
    r"|(?<=://)[^/?#\s:]*:[^/?#\s]*@"
)
_SIGNATURE = (
    r"x-(?:amz|goog|ms|oss|obs|cos|tos)-[\w-]+|q-(?:ak|sign[\w-]*)|sig|[\w-]*signature|credential"
)
_SECRET = (
    rf"{_SIGNATURE}|se|sp|skoid|[\w-]*token|auth|authorization|jwt|sas|key|rlkey|api_?key|"
    r"[\w-]*secret|pass|passwd|password|passphrase|pwd|\w*accesskeyid|googleaccessid|policy|"
    r"key-pair-id|expires|hdnts|hdnea|hdntl"
)
# Words that are names of columns as well, and so of folders, count in the query of a URL only.
_PARAMETER = re.compile(rf"(?i)((?:[?&](?:{_SECRET})|(?<![\w/?&-])(?:{_SIGNATURE}))=)[^&\s\"'<>,]+")
_HEADER = re.compile(
    r"(?i)\b((?:(?:proxy-)?authorization|x-amz-security-token)[\"']?\s*[:=]\s*"
    r"[\"']?(?:(?:basic|bearer|sharedkey)\s+)?)[^\s&\"',<>]+"
)
# What S3 says of a signature or a token that it does not accept contains both.
_ELEMENT = re.compile(
    r"(<(?:AWSAccessKeyId|SignatureProvided|StringToSign\w*|CanonicalRequest\w*|Token-\d+)>)[^<]+"
)
_OF_SAS = re.compile("sv|ss|srt|sr|sp|se|st|spr|sip|si|sig|sdd|skoid|sktid|skt|ske|sks|skv")
_PAIR = re.compile(r"(?:^|[;&?])([\w-]+)=([^;&]+)")
_TELLING = re.compile(rf"(?i)(?:{_SECRET}|accountkey|sharedaccesssignature)")
_AMBIENT = re.compile(
    r"(?:AWS|AZURE|GOOGLE|HF|HUGGING_?FACE)_.*(?:KEY|TOKEN|SECRET|PASSWORD|CONNECTION_STRING)\w*"
)
_IN_THE_OPEN = re.compile(
    r"account_(?:host|name|url)|addressing_style|anon|(?:aws_)?(?:endpoint|region)\w*|base_url|"
    r"expires_at|host|hostname|profile|profile_name|project|signature_version|verify"
)
_WORDS = {"anon", "browser", "cache", "cloud", "default", "google_default"}
"""what some options take beside secrets"""
_SHORTEST = 4
_SHORTEST_LINE = 16


class Redaction:
    """Hides the values of some options, wherever a text contains them."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        found = {part for secret in _strings(options or {}) for part in _parts(secret)}
        self.secrets = frozenset(part for part in found if len(part) >= _SHORTEST)
        forms = {form for secret in self.secrets for form in _forms(secret)}
        longest_first = sorted(forms, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def __call__(self, text: str) -> str:
        """The text without credentials: neither those of the options nor those in URLs."""
        if self._secrets is not None:
            text = self._secrets.sub(_HIDDEN, text)
        return without_secrets(text)


def without_secrets(text: str) -> str:
    """A text, or a URL, without userinfo and signatures in the URLs that it contains."""
    text = _USERINFO.sub(f"{_HIDDEN}@", text)
    for pattern in (_PARAMETER, _HEADER, _ELEMENT):
        text = pattern.sub(rf"\1{_HIDDEN}", text)
    return text


def has_secret(url: str) -> bool:
    """Whether a URL contains something that must not be shown."""
    return without_secrets(url) != url


def public_url(url: str) -> str:
    """A URL without userinfo, and without the parameters that sign it."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    kept = [one for one in parts.query.split("&") if one and not has_secret(f"?{one}")]
    if "sig=" in parts.query:
        kept = [one for one in kept if not _OF_SAS.fullmatch(one.partition("=")[0])]
    return urlunsplit((parts.scheme, host, parts.path, "&".join(kept), ""))


def of_environment() -> dict[str, str]:
    """What the environment holds for clients that look there by themselves."""
    return {name: value for name, value in os.environ.items() if _AMBIENT.fullmatch(name)}


def _strings(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, bytes | bytearray):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        if not _IN_THE_OPEN.fullmatch(name) and value not in _WORDS:
            yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(inner, str(key))
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from _strings(inner, name)
        if name == "auth" and all(isinstance(one, str) for one in value):
            yield ":".join(value)
    elif not callable(value):  # an object that holds a token, say
        for attribute in ("token", "password", "secret", "refresh_token", "client_secret", "key"):
            inner = getattr(value, attribute, None)
            if isinstance(inner, str):
                yield inner


def _parts(secret: str) -> Iterator[str]:
    """A secret, and those inside it: of a connection string, a signed URL, a key of many lines."""
    yield secret
    yield secret.strip()
    yield secret.rstrip("=")  # some leave the padding out
    for name, value in _PAIR.findall(secret):
        if _TELLING.fullmatch(name):
            yield value
            yield unquote(value)
    userinfo = secret.partition("://")[2].partition("/")[0].rpartition("@")[0]
    for text in (userinfo, unquote(userinfo)):
        yield text
        yield text.partition(":")[2]
    lines = secret.split("\n")
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= _SHORTEST_LINE)


def _forms(secret: str) -> Iterator[str]:
    """How it may be written."""
    yield from (secret, " ".join(secret.split()))
    for quoted in (quote(secret), quote(secret, safe=""), quote_plus(secret)):
        yield quoted
        yield re.sub("%..", lambda found: found[0].lower(), quoted)
    yield from (html.escape(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1])
    yield b64encode(secret.encode()).decode().rstrip("=")
