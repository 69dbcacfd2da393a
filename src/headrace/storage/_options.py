"""Options of stores: the names that users know, and the configuration that clients take.

Users know the names of fsspec (s3fs, gcsfs, adlfs), pyarrow and boto3. One table maps them to the
names of obstore; all other options are passed to obstore unchanged. A function may stand in their
place: it is called in the process that reads, and again before its result expires.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from headrace.errors import MissingExtraError, OptionError

Options = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""Options as the user gives them: a mapping, or a function that returns one."""

_ALIASES = {
    "key": "access_key_id",
    "access_key": "access_key_id",
    "secret": "secret_access_key",
    "secret_key": "secret_access_key",
    "session_token": "token",
    "bearer_token": "token",
    "access_token": "token",
    "sas_token": "sas_key",
    "anon": "skip_signature",
    "anonymous": "skip_signature",
    "endpoint_url": "endpoint",
    "endpoint_override": "endpoint",
    "account_url": "endpoint",
    "account_host": "endpoint",
    "region_name": "region",
    "profile_name": "profile",
    "requester_pays": "request_payer",
}
"""Names that users know, without the prefix of a provider, mapped to those of this module."""
_PREFIXES = ("aws_", "azure_storage_", "azure_", "google_")
_OF_LINES = {"service_account_key"}
"""Options whose values are texts of several lines."""
_EXPIRY = "expires_at"
_EARLY_S = 60.0
_EARLY_SHARE = 0.25
"""Credentials are renewed this many seconds, or this part of their lifetime, before they expire."""
_REGION_TIMEOUT_S = 5.0


# --- a function that returns options


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """Options with their current values.

    Attributes:
        options: The options.
        expires_at: When to call the function again, in seconds since 1970; None for never.
        renewable: True if there is a function, which may return other values another time.
    """

    options: Mapping[str, Any]
    expires_at: float | None
    renewable: bool
    resolved_at: float = field(default_factory=time.time)

    @property
    def stale(self) -> bool:
        """Return True if it is time to call the function again."""
        if self.expires_at is None:
            return False
        lifetime_s = max(self.expires_at - self.resolved_at, 0.0)
        return time.time() > self.expires_at - min(_EARLY_S, _EARLY_SHARE * lifetime_s)


def resolve_options(given: Options) -> ResolvedOptions:
    """Return options with their current values, which a function may give."""
    renewable = callable(given)
    options = given() if callable(given) else given
    if not isinstance(options, Mapping):
        raise OptionError(
            "the function given as storage_options must return a mapping of options, "
            f"not a {type(options).__name__}"
        )
    found = dict(options)
    expires_at = _seconds(found.pop(_EXPIRY, None))
    return ResolvedOptions(found, expires_at if renewable else None, renewable)


def _seconds(moment: Any) -> float | None:
    """Return a time in seconds since 1970, given as a number, a datetime or ISO 8601."""
    if isinstance(moment, str):
        with suppress(ValueError):
            moment = datetime.fromisoformat(moment)
    if isinstance(moment, datetime):
        return moment.timestamp()
    if moment is None or (isinstance(moment, int | float) and not isinstance(moment, bool)):
        return moment
    # The value is not shown, because a secret may be in its place.
    raise OptionError(f"{_EXPIRY} is no time, such as seconds or 2026-12-31T23:59:59Z")


# --- names and values


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Arguments of a store of obstore.

    Attributes:
        config: Its keywords.
        client: Its ``client_options``.
        keys: Its ``credential_provider``; None if the client finds credentials by itself.
    """

    config: dict[str, Any] = field(repr=False)
    client: dict[str, Any] = field(repr=False)
    keys: StoreKeys | None = field(default=None, repr=False)


def store_options(kind: str, given: Mapping[str, Any]) -> StoreOptions:
    """Return the options of an object store in the form that obstore takes.

    Args:
        kind: ``s3``, ``gcs`` or ``azure``.
        given: Options, by any name that users know.

    Raises:
        OptionError: An option is not known, or its value is wrong.
    """
    parsed = {"s3": s3_options, "gcs": gcs_options, "azure": azure_options}[kind](given)
    config = {**({"account_name": "account"} if kind == "azure" else {}), **parsed.config}
    refuse_wrong_options(lambda: new_store(kind, "check", config, parsed.client))
    return parsed


def new_store(kind: str, name: str, config: Mapping[str, Any], client: Any, **more: Any) -> Any:
    """Return a store of obstore for a bucket or container."""
    from obstore import store

    kinds = {"s3": store.S3Store, "gcs": store.GCSStore, "azure": store.AzureStore}
    return kinds[kind](name, client_options=client, **config, **more)


def refuse_wrong_options(make: Callable[[], Any]) -> None:
    """Make a store that is not used, so that obstore reports wrong options at once."""
    from obstore.exceptions import BaseError

    try:
        make()
    except (BaseError, TypeError, ValueError) as error:
        text = str(error).partition("\n")[0]
        raise OptionError(f"storage_options cannot be used: {text}") from None


class StoreKeys:
    """A credential provider of obstore that remembers its secrets, so that errors can hide them."""

    def __init__(self, provider: Callable[[], Mapping[str, Any]]) -> None:
        self._provider = provider
        self.secrets: set[str] = set()

    def __call__(self) -> Mapping[str, Any]:
        found = self._provider()
        self.secrets.update(value for value in found.values() if isinstance(value, str))
        return found


def _named(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by the names of this module; None counts as not given.

    Values are not shown in errors: they may be secret.
    """
    found: dict[str, Any] = {}
    for given, value in options.items():
        name = str(given)
        for prefix in _PREFIXES:
            name = name.removeprefix(prefix)
        name = _ALIASES.get(name, name)
        if value is None:
            continue
        if callable(value):
            raise OptionError(
                f"storage option {given!r} is a function; give one function that returns all "
                "options: storage_options=lambda: {...}"
            )
        if isinstance(value, str) and not value.isprintable() and name not in _OF_LINES:
            raise OptionError(
                f"storage option {given!r} holds characters that cannot be sent, such as a line "
                "break"
            )
        if name in found and found[name] != value:
            raise OptionError(f"storage_options names {name} twice, by different values")
        found[name] = value
    return found


def _only(store: str, names: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options; raise an OptionError if a name is not known."""
    unknown = sorted(set(map(str, options)) - set(names.split()))
    if unknown:
        raise OptionError(
            f"storage_options for {store} has {unknown[0]!r}, which is not known; known are "
            f"{', '.join(names.split())}"
        )
    return {name: value for name, value in options.items() if value is not None}


def is_url(text: object) -> bool:
    """Return True for the URL of a web server."""
    if not isinstance(text, str) or " " in text.partition("://")[2].partition("/")[0]:
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _server_url(name: str, url: object) -> str:
    if not is_url(url):
        raise OptionError(f"storage option {name!r} must be a URL such as https://host:port")
    return str(url).rstrip("/")


def _client_options(options: dict[str, Any], place: str) -> dict[str, Any]:
    """Return client options, from ``verify`` and from the URL of a server."""
    client: dict[str, Any] = {}
    verify = options.pop("verify", True)
    if verify is False:
        client["allow_invalid_certificates"] = True
    elif verify is not True:
        try:
            with open(os.fspath(verify), "rb") as file:
                client["root_certificate"] = file.read()
        except (OSError, TypeError) as error:
            raise OptionError(
                f"storage option 'verify' must be True, False, or a file of certificates: {error}"
            ) from None
    if place in options:
        options[place] = _server_url(place, options[place])
        client["allow_http"] = options[place].startswith("http://")
    return client


def _from_environment(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


# --- S3


def s3_options(given: Mapping[str, Any]) -> StoreOptions:
    """Return the options of obstore's ``S3Store``, with those of the environment and profiles."""
    config = _flattened(given)
    signed = config.get("skip_signature") is not True
    keys = _given_keys(config)
    settings, found = _profile(config.pop("profile", None), find_keys=signed and keys is None)
    keys = (keys or found) if signed else None
    config = {**settings, **config}
    if config.pop("addressing_style", "path") == "virtual":
        config["virtual_hosted_style_request"] = True
    secure = config.pop("use_ssl", True)
    endpoint = config.get("endpoint")
    endpoint = endpoint or _from_environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    if isinstance(endpoint, str) and "://" not in endpoint:
        endpoint = f"{'https' if secure else 'http'}://{endpoint}"
    if endpoint is not None:
        config["endpoint"] = endpoint
    region = _from_environment("AWS_REGION", "AWS_DEFAULT_REGION")
    if region is not None:
        config.setdefault("region", region)
    return StoreOptions(config, _client_options(config, "endpoint"), keys)


def _flattened(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those inside s3fs' ``client_kwargs`` and ``config_kwargs``."""
    options = _named(given)
    inner = _named(options.pop("client_kwargs", {}))
    # The library has its own keywords for time-outs and retries, and obstore signs by version 4.
    ignored = "connect_timeout max_pool_connections read_timeout retries signature_version"
    config = _only("config_kwargs of S3", f"s3 {ignored}", options.pop("config_kwargs", {}))
    style = config.get("s3", {}).get("addressing_style")
    if style is not None:
        inner["addressing_style"] = style
    return {**inner, **options}


def _given_keys(options: dict[str, Any]) -> StoreKeys | None:
    """Take the keys out of options, and return a provider of them.

    In plain configuration they would be mixed with a session token of the environment.
    """
    names = ("access_key_id", "secret_access_key", "token")
    key, secret, token = (options.pop(name, None) for name in names)
    if key is None and secret is None and token is None:
        return None
    if key is None or secret is None:
        raise OptionError("storage_options for S3 needs both key and secret, and has one of them")
    if not all(isinstance(value, str | None) for value in (key, secret, token)):
        raise OptionError("key, secret and token of storage_options for S3 must be strs")
    found = {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}
    return StoreKeys(lambda: found)


def _profile(name: str | None, *, find_keys: bool) -> tuple[dict[str, Any], StoreKeys | None]:
    """Return the settings of an AWS profile, and the credentials that boto3 finds.

    Without a profile, and without files of profiles, obstore finds credentials by itself.
    """
    named = name or _from_environment("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
    if named is None and not any(map(os.path.exists, _aws_files())):
        return {}, None
    try:
        from botocore.exceptions import ProfileNotFound
        from botocore.session import Session
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        if named is None:
            return {}, None
        raise MissingExtraError.for_extra(
            "s3", f"boto3, which reads the AWS profile {named!r},"
        ) from None
    session, keys = Session(profile=name), None
    try:
        section = session.get_scoped_config()
        if find_keys and session.get_credentials() is not None:
            keys = StoreKeys(Boto3CredentialProvider(session))
            keys()  # or errors would show late
    except ProfileNotFound:
        raise OptionError(f"no AWS profile is called {named!r}") from None
    except Exception as error:  # its text may hold a command with secrets
        failed = type(error).__name__
    else:
        found = {"region": section.get("region"), "endpoint": section.get("endpoint_url")}
        return {key: value for key, value in found.items() if value is not None}, keys
    raise OptionError(f"the AWS profile {named or 'default'!r} gave no credentials: {failed}")


def _aws_files() -> list[str]:
    home = os.path.expanduser("~/.aws")
    return [
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", f"{home}/credentials"),
        os.environ.get("AWS_CONFIG_FILE", f"{home}/config"),
    ]


def bucket_region(bucket: str, host: str = "s3.amazonaws.com", *, secure: bool = True) -> str:
    """Return the region of a bucket, which is public; us-east-1 if it is not known."""
    connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = connect(host, timeout=_REGION_TIMEOUT_S)
    try:
        connection.request("HEAD", f"/{bucket}")
        return connection.getresponse().getheader("x-amz-bucket-region") or "us-east-1"
    except (OSError, http.client.HTTPException):  # reading will fail with a better message
        return "us-east-1"
    finally:
        connection.close()


# --- Google Cloud Storage


def gcs_options(given: Mapping[str, Any]) -> StoreOptions:
    """Return the options of obstore's ``GCSStore``."""
    config = _named(given)
    for unused in ("project", "access"):
        config.pop(unused, None)
    if "endpoint" in config:
        config["base_url"] = config.pop("endpoint")
    client = _client_options(config, "base_url")
    token = config.pop("token", None)
    keys = None
    if token == "anon":
        config["skip_signature"] = True
    elif isinstance(token, Mapping):
        config["service_account_key"] = json.dumps(dict(token))
    elif isinstance(token, str | os.PathLike) and os.path.exists(token):
        config["application_credentials"] = os.fspath(token)
    elif isinstance(token, str) and token.endswith(".json"):
        raise OptionError("the file that storage option 'token' names does not exist")
    elif isinstance(token, str) and token not in ("google_default", "cloud"):
        keys = StoreKeys(lambda: {"token": token, "expires_at": None})
    elif token is not None and not isinstance(token, str):
        raise OptionError(
            "storage option 'token' for Google Cloud Storage must be 'anon', 'google_default', "
            f"the path or the content of a key, or a bearer token, not a {type(token).__name__}"
        )
    return StoreOptions(config, client, keys)


# --- Azure

_CONNECTION_STRING = {
    "accountname": "account_name",
    "accountkey": "account_key",
    "blobendpoint": "endpoint",
    "sharedaccesssignature": "sas_key",
}
_AZURE_CREDENTIALS = {
    "token": "bearer_token",
    "account_key": "access_key",
    "sas_key": "sas_token",
    "client_secret": "client_secret",
}
"""Kind of credential that obstore uses, by option."""


def azure_options(given: Mapping[str, Any]) -> StoreOptions:
    """Return the options of obstore's ``AzureStore``."""
    config = _named(given)
    string = config.pop("connection_string", None)
    if string is None and not config:
        string = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    if string is not None:
        config = {**_parse_connection_string(string), **config}
    credential = config.pop("credential", None)
    if isinstance(credential, str):
        config.setdefault("sas_key" if "sig=" in credential else "account_key", credential)
    elif credential is not None:
        raise OptionError(
            "storage option 'credential' for Azure must be a key or a SAS token; of a credential "
            "object give the token: storage_options=lambda: {'token': "
            "credential.get_token(...).token}"
        )
    endpoint = config.get("endpoint")
    endpoint = endpoint or _from_environment("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    if endpoint is not None:
        has_scheme = not isinstance(endpoint, str) or "://" in endpoint
        config["endpoint"] = endpoint if has_scheme else f"https://{endpoint}"
    if config.get("sas_key"):
        config["sas_key"] = config["sas_key"].lstrip("?")
    kind = next((kind for name, kind in _AZURE_CREDENTIALS.items() if name in config), None)
    if kind is not None:  # or one of the environment may take precedence
        config["credential_type"] = kind
    client = _client_options(config, "endpoint")
    return StoreOptions(config, client)


def _parse_connection_string(string: str) -> dict[str, Any]:
    fields = dict(part.partition("=")[::2] for part in string.split(";") if "=" in part)
    lower = {name.lower(): value for name, value in fields.items()}
    if lower.get("usedevelopmentstorage", "").lower() == "true":
        return {"use_emulator": True}
    found = {meant: lower[name] for name, meant in _CONNECTION_STRING.items() if name in lower}
    if "account_name" not in found:
        raise OptionError("the Azure connection_string names no AccountName")
    suffix = lower.get("endpointsuffix")
    if suffix and "endpoint" not in found:
        scheme = lower.get("defaultendpointsprotocol", "https")
        found["endpoint"] = f"{scheme}://{found['account_name']}.blob.{suffix}"
    return found


# --- web servers and the hub


def http_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return client options for web servers, and ``user:password`` for all of them."""
    options = _named(given)
    options = {**_named(options.pop("client_kwargs", {})), **options}
    options = _only("HTTP", "headers auth token verify", options)
    headers = dict(options.get("headers", {}))
    if "token" in options:
        headers["Authorization"] = f"Bearer {options['token']}"
    client = {"default_headers": headers, **_client_options(options, "")}
    auth = options.get("auth")
    if auth is None:
        return client, None
    is_pair = isinstance(auth, tuple | list) and all(isinstance(part, str) for part in auth)
    login = ":".join(auth) if is_pair else ""
    if not login.partition(":")[0]:
        raise OptionError("storage option 'auth' for HTTP must be a user and a password")
    return client, login


def hub_options(given: Mapping[str, Any]) -> tuple[str | bool | None, str | None]:
    """Return the token and the endpoint of the Hugging Face hub."""
    options = _only("the Hugging Face hub", "endpoint token", _named(given))
    endpoint = options.get("endpoint") or os.environ.get("HF_ENDPOINT")
    if endpoint is not None:
        endpoint = _server_url("endpoint", endpoint)
    return options.get("token"), endpoint
