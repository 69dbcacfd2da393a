"""Keep credentials out of all messages and files."""

from __future__ import annotations

import html
import json
import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote, urlsplit, urlunsplit

from headrace.errors import OptionError
from headrace.model import computed_once
from headrace.storage._options import is_url
from headrace.storage._store import protocol_of

# In these expressions (?i) ignores case; (?<=…) and (?<!…) look at what stands before, (?=…) and
# (?!…) at what follows. What they look at is not replaced.

_HIDDEN = "***"
# In paths of Azure the part before the @ is a container, and not a password.
_USERINFO = re.compile(
    r"(?<=://)(?<!\baz://)(?<!\babfs://)(?<!\babfss://)(?<!\badl://)[^/?#\s]+@"
    r"|(?<=://)[^/?#\s:]*:[^/?#\s]*@"
)
# Parameters of URLs signed by Amazon, Google, Azure, Alibaba (oss), Huawei (obs), Tencent (cos, q-)
# and Volcengine (tos).
_SIGNATURE = (
    r"x-(?:amz|goog|ms|oss|obs|cos|tos)-[\w-]+|q-(?:ak|sign[\w-]*)|sig|[\w-]*signature|credential"
)
_SECRET = (
    rf"{_SIGNATURE}|se|sp|skoid|[\w-]*token|auth|authorization|jwt|sas|key|rlkey|api_?key|"
    r"[\w-]*secret|pass|passwd|password|passphrase|pwd|\w*accesskeyid|googleaccessid|policy|"
    r"key-pair-id|expires|hdnts|hdnea|hdntl"
)
_HARMLESS = re.compile(
    r"(?i)alt|branch|commit|compression|config|dataset|date|day|dl|download|export|ext|file|"
    r"filename|files|format|generation|id|index|lang|language|length|limit|month|name|offset|page|"
    r"part|path|persistentid|prefix|raw|ref|rev|revision|row|rows|shard|size|sort|split|start|stop|"
    r"subset|tag|type|v|version|versionid|year"
)
"""Names of URL parameters whose values are shown; any other value may be a secret."""
_MAY_BE_NESTED = re.compile(r"(?i)[=@]|%3d|%40")
"""Characters by which a URL inside of a value marks its own secrets."""
_WORD = re.compile(r"[^\s\"'<>]+")
_SCHEME = re.compile(r"([A-Za-z][\w+.-]*)://")
_WITHOUT_QUERY = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "hf", "file", "local"}
"""Schemes of URLs in which a question mark is a part of a path, or of a pattern."""
# A name has no slash: the question mark of a pattern may be followed by `/month=1`. A comma ends a
# value unless the value goes on behind it.
_QUERY = re.compile(r"([?&][^=&?#/\s\"'<>,]+)=((?:[^&\s\"'<>,]|,(?=[^&\s\"'<>]))+)")
# Words that are also names of columns, and so of folders, count only in the query of a URL.
_PARAMETER = re.compile(rf"(?i)((?:[?&](?:{_SECRET})|(?<![\w/?&-])(?:{_SIGNATURE}))=)[^&\s\"'<>,]+")
_HEADER = re.compile(
    r"(?i)\b((?:(?:proxy-)?authorization|x-amz-security-token)[\"']?\s*[:=]\s*"
    r"[\"']?(?:(?:basic|bearer|sharedkey)\s+)?)[^\s&\"',<>]+"
)
# The message of S3 about a signature or a token that it does not accept contains both.
_ELEMENT = re.compile(
    r"(<(?:AWSAccessKeyId|SignatureProvided|StringToSign\w*|CanonicalRequest\w*|Token-\d+)>)[^<]+"
)
_OF_SAS = re.compile("sv|ss|srt|sr|sp|se|st|spr|sip|si|sig|sdd|skoid|sktid|skt|ske|sks|skv")
"""Parameters of a shared access signature of Azure, which differ each time a URL is signed."""
_PAIR = re.compile(r"(?:^|[;&?])([\w-]+)=([^;&]+)")
"""A name and its value in a query, or in a connection string of Azure."""
_TELLING = re.compile(rf"(?i)(?:{_SECRET}|accountkey|sharedaccesssignature)")
"""Names of parameters and of parts of connection strings whose values are secrets."""
_AMBIENT = re.compile(
    r"(?:AWS|AZURE|GOOGLE|HF|HUGGING_?FACE)_.*(?:KEY|TOKEN|SECRET|PASSWORD|CONNECTION_STRING)\w*"
)
_IN_THE_OPEN = re.compile(
    r"account_(?:host|name|url)|addressing_style|(?:aws_)?(?:endpoint|region)\w*|base_url|"
    r"expires_at|host|hostname|profile|profile_name|project|signature_version|verify"
)
"""Options whose values are not hidden: messages need them, and common words may be among them."""
_WORDS = {"anon", "browser", "cache", "cloud", "default", "google_default"}
"""Words that some options take in place of a secret."""
_SHORTEST = 4
"""Shorter values are not hidden: they are in many texts by chance."""
_SHORTEST_LINE = 16
"""The same for a single line of a long key."""


class Redaction:
    """Hides the values of some options, wherever a text contains them.

    It also hides the secrets in environment variables that clients read by themselves.
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        ambient = {name: value for name, value in os.environ.items() if _AMBIENT.fullmatch(name)}
        known = [*_strings(ambient), *_strings(options or {})]
        found = {part for secret in known for part in _parts(secret)}
        self.secrets = frozenset(part for part in found if len(part) >= _SHORTEST)

    @computed_once
    def _longest_first(self) -> list[str]:
        """The forms in which secrets may be written; computed late, as signed URLs may be many."""
        return sorted({form for one in self.secrets for form in _forms(one)}, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text without credentials: neither those of the options nor those in URLs."""
        for form in self._longest_first:
            text = text.replace(form, _HIDDEN)
        return without_secrets(text)


def without_secrets(text: str) -> str:
    """Return a text without the userinfo, signatures and unknown parameters of URLs in it."""
    text = _USERINFO.sub(f"{_HIDDEN}@", text)
    for pattern in (_PARAMETER, _HEADER, _ELEMENT):
        text = pattern.sub(rf"\1{_HIDDEN}", text)
    return _WORD.sub(_without_unknown_values, text)


def _without_unknown_values(word: re.Match[str]) -> str:
    """Hide the values of parameters that are not known to be harmless."""
    schemes = {scheme.lower() for scheme in _SCHEME.findall(word[0])}
    if schemes and schemes <= _WITHOUT_QUERY:
        return word[0]
    return _QUERY.sub(
        lambda one: one[0] if _is_harmless(one[1][1:], one[2]) else f"{one[1]}={_HIDDEN}", word[0]
    )


def _is_harmless(name: str, value: str) -> bool:
    return _HARMLESS.fullmatch(name) is not None and _MAY_BE_NESTED.search(value) is None


def has_secret(url: str) -> bool:
    """Return True if a URL contains something that must not be shown."""
    return without_secrets(url) != url


def public_url(url: str) -> str:
    """Return a URL without userinfo, and without parameters that may be secrets."""
    return _with_parameters(url, lambda one: not has_secret(f"?{one}"))


def unsigned_url(url: str) -> str:
    """Return a URL without its known signatures.

    The result tells apart URLs of different files. It must not be shown, because unknown parameters
    are still in it.
    """
    is_sas = "sig=" in urlsplit(url).query
    return _with_parameters(
        url,
        lambda one: (
            not _TELLING.fullmatch(one.partition("=")[0])
            and not (is_sas and _OF_SAS.fullmatch(one.partition("=")[0]))
        ),
    )


def _with_parameters(url: str, keep: Callable[[str], bool]) -> str:
    """Return a URL without userinfo and fragment, and with some of its parameters."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    kept = [one for one in parts.query.split("&") if one and keep(one)]
    return urlunsplit((parts.scheme, host, parts.path, "&".join(kept), ""))


def shown_location(location: str) -> str:
    """Return a location without the secrets that a URL may hold."""
    if protocol_of(location) == "" or not has_secret(location):
        return location
    try:
        return public_url(location)
    except ValueError:  # it is no URL
        return without_secrets(location)


def shown_urls(urls: list[str]) -> list[str]:
    """Return the texts shown for URLs, numbered where several look alike: ``https://host/get#2``.

    Such URLs differ in parameters that may name files or be secrets, which are not shown. The
    numbers follow from the URLs alone, and not from their order.

    Raises:
        OptionError: A location is not a URL, or two differ only in their signatures.
    """
    alike: dict[str, set[str]] = {}
    for url in urls:
        public = shown_location(url)
        if not is_url(url):
            raise OptionError(f"{without_secrets(public)} is no URL of a web server")
        alike.setdefault(public, set()).add(url)
    shown = {}
    for public, group in alike.items():
        if len({unsigned_url(one) for one in group}) < len(group):
            raise OptionError(
                "two URLs differ only in what signs them, so that their files could not be "
                f"distinguished: {public}"
            )
        for number, url in enumerate(sorted(group), 1):
            shown[url] = f"{public}#{number}" if len(group) > 1 else public
    return [shown[url] for url in urls]


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
    elif not callable(value):  # an object that holds a token, for example
        for attribute in ("token", "password", "secret", "refresh_token", "client_secret", "key"):
            inner = getattr(value, attribute, None)
            if isinstance(inner, str):
                yield inner


def _parts(secret: str) -> Iterator[str]:
    """Yield a secret and the secrets inside of a connection string, a URL, or a long key."""
    yield secret
    yield secret.strip()
    yield secret.rstrip("=")  # some leave the padding out
    for name, value in _PAIR.findall(secret):
        if _TELLING.fullmatch(name):
            yield value
            yield unquote(value)
    query = secret.partition("?")[2].partition("#")[0] if "://" in secret else ""
    for name, _, value in (one.partition("=") for one in query.split("&")):
        if not _is_harmless(name, value):
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
    """Yield the forms in which a secret may be written."""
    yield from (secret, " ".join(secret.split()))
    for quoted in (quote(secret), quote(secret, safe=""), quote_plus(secret)):
        yield quoted
        # Some clients write %2f in place of %2F.
        yield re.sub("%..", lambda found: found[0].lower(), quoted)
    yield from (html.escape(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1])
    yield b64encode(secret.encode()).decode().rstrip("=")
