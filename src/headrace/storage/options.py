"""Options of stores: the names that users know, and the configuration that clients take.

Users know the names of fsspec (s3fs, gcsfs, adlfs), pyarrow and boto3. One table maps them all.
An option, or all options, may be a function: it is called in the process that reads, and again
before what it returned expires.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

from headrace.errors import MissingExtraError, OptionError

__all__ = [
    "Options",
    "Resolved",
    "azure_options",
    "gcs_options",
    "gcsfs_options",
    "http_options",
    "hub_options",
    "is_url",
    "resolve",
    "s3_options",
]

Options = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""Options as a user gives them: a mapping, or a function that returns one."""

_ALIASES: dict[str, dict[str, str]] = {
    "S3": {
        "access_key_id": "key aws_access_key_id access_key",
        "secret_access_key": "secret aws_secret_access_key secret_key",
        "session_token": "token aws_session_token",
        "anon": "anonymous skip_signature",
        "endpoint": "endpoint_url endpoint_override aws_endpoint_url",
        "region": "region_name aws_region",
        "profile": "profile_name",
        "requester_pays": "request_payer",
        **dict.fromkeys(("use_ssl", "verify", "addressing_style"), ""),
        **dict.fromkeys(("client_kwargs", "config_kwargs"), ""),
    },
    "Google Cloud Storage": {
        "bearer_token": "access_token",
        "anon": "anonymous skip_signature",
        **dict.fromkeys(("token", "service_account", "service_account_key"), ""),
        **dict.fromkeys(("application_credentials", "project", "access"), ""),
        **dict.fromkeys(("base_url", "endpoint_url", "verify"), ""),
    },
    "Azure": {
        "sas_key": "sas_token",
        "token": "bearer_token",
        "endpoint": "endpoint_url account_url account_host",
        "anon": "anonymous skip_signature",
        **dict.fromkeys(("account_name", "account_key", "connection_string", "credential"), ""),
        **dict.fromkeys(("tenant_id", "client_id", "client_secret", "federated_token_file"), ""),
        **dict.fromkeys(("use_azure_cli", "use_emulator", "verify"), ""),
    },
    "HTTP": {
        "token": "bearer_token",
        **dict.fromkeys(("headers", "auth", "verify", "client_kwargs"), ""),
    },
    "the Hugging Face hub": {"endpoint": "endpoint_url", "token": ""},
}
"""By kind of store: options, and the other names by which users know them."""

_OF_LINES = {"service_account_key"}
"""Options whose values are texts of several lines."""
_EXPIRY = "expires_at"
_SOURCE = "credentials"
_EARLY_S = 60.0
_EARLY_SHARE = 0.25
"""Credentials are renewed so many seconds before they expire, or this part of their lifetime."""
_REGION_TIMEOUT_S = 5.0


# --- functions that return options


@dataclass(frozen=True, slots=True)
class Resolved:
    """Options with the values that they have now.

    Attributes:
        options: The options, without functions.
        expires_at: When to ask for others, in seconds since 1970; None if never.
        renewable: True if asking again may return others.
    """

    options: Mapping[str, Any]
    expires_at: float | None
    renewable: bool
    resolved_at: float = field(default_factory=time.time)

    @property
    def stale(self) -> bool:
        """Return True if it is time to ask again."""
        if self.expires_at is None:
            return False
        lifetime_s = max(self.expires_at - self.resolved_at, 0.0)
        return time.time() > self.expires_at - min(_EARLY_S, _EARLY_SHARE * lifetime_s)


def resolve(given: Options) -> Resolved:
    """Call the functions in options: all of them, ``credentials``, or the value of any option."""
    options = _called(given, "storage_options") if callable(given) else given
    renewable = callable(given)
    found: dict[str, Any] = {}
    for name, value in options.items():
        if not callable(value):
            found[name] = value
        elif name == _SOURCE:
            found.update(_called(value, _SOURCE))
        else:
            found[name] = value()
        renewable = renewable or callable(value)
    expires_at = _seconds(found.pop(_EXPIRY, None))
    return Resolved(found, expires_at if renewable else None, renewable)


def _called(source: Callable[[], Any], name: str) -> Mapping[str, Any]:
    options = source()
    if not isinstance(options, Mapping):
        raise OptionError(
            f"the function given as {name} must return a mapping of options, "
            f"not a {type(options).__name__}"
        )
    return options


def _seconds(moment: Any) -> float | None:
    """Return a time in seconds since 1970, given as a number, a datetime or ISO 8601."""
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            moment = None
        if moment is None:
            raise OptionError(f"{_EXPIRY} is no time, such as 2026-12-31T23:59:59Z")
    if isinstance(moment, datetime):
        return moment.timestamp()
    if moment is None:
        return None
    if isinstance(moment, bool) or not isinstance(moment, int | float):
        raise OptionError(f"{_EXPIRY} must be a datetime or seconds, not {type(moment).__name__}")
    return float(moment)


# --- names and values


def _meant(store: str, options: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
    """Return options by the names that are used here; None counts as not given.

    Values are not shown in errors: they may be secret.
    """
    names = {name: name for name in _ALIASES[store]}
    for name, others in _ALIASES[store].items():
        names.update(dict.fromkeys(others.split(), name))
    found: dict[str, Any] = {}
    for name, value in options.items():
        meant = names.get(name)
        if meant is None:
            near = get_close_matches(str(name), names, 1)
            guess = f" (did you mean {near[0]!r}?)" if near else ""
            raise OptionError(
                f"storage_options{inside} for {store} has {name!r}, which is not known{guess}; "
                f"known are {', '.join(sorted(names))}"
            )
        if value is None:
            continue
        if isinstance(value, str) and not value.isprintable() and meant not in _OF_LINES:
            raise OptionError(
                f"storage option {name!r} for {store} holds characters that cannot be sent, "
                "such as a line break"
            )
        if meant in found and found[meant] != value:
            raise OptionError(
                f"storage_options for {store} names {meant} twice, by different values"
            )
        found[meant] = value
    return found


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


def _certificates(verify: Any) -> dict[str, Any]:
    """Return client options for ``verify``: a flag, or the path of a file of certificates."""
    if verify is None or verify is True:
        return {}
    if verify is False:
        return {"allow_invalid_certificates": True}
    if not isinstance(verify, str | os.PathLike):
        raise OptionError(
            "storage option 'verify' must be True, False, or the path of a file of certificates"
        )
    try:
        with open(verify, "rb") as file:
            return {"root_certificate": file.read()}
    except OSError as error:
        raise OptionError(f"storage option 'verify' names no readable file: {error}") from None


def _flag(options: dict[str, Any], name: str) -> bool | None:
    value = options.pop(name, None)
    if value is not None and not isinstance(value, bool):
        raise OptionError(f"storage option {name!r} must be True or False")
    return value


def _from_environment(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


# --- S3


class Keys:
    """A credential provider of obstore that remembers its secrets, so that errors can hide them."""

    def __init__(self, provider: Callable[[], Mapping[str, Any]]) -> None:
        self._provider = provider
        self.secrets: set[str] = set()

    def __call__(self) -> Mapping[str, Any]:
        found = self._provider()
        self.secrets.update(value for value in found.values() if isinstance(value, str))
        return found


@dataclass(frozen=True, slots=True)
class S3Options:
    """Arguments of obstore's ``S3Store``.

    Attributes:
        config: Its keywords.
        client: Its ``client_options``.
        keys: Its ``credential_provider``; None if the client finds credentials by itself.
        region_known: False if the region of a bucket has to be asked for.
    """

    config: dict[str, Any]
    client: dict[str, Any]
    keys: Keys | None = field(repr=False)
    region_known: bool


def s3_options(given: Mapping[str, Any]) -> S3Options:
    """Return the configuration for S3, with what the environment and AWS profiles add."""
    options = _flattened(given)
    keys = _given_keys(options)
    settings, found = _profile(options.pop("profile", None), has_key=keys is not None)
    keys = keys or found
    options = {**settings, **options}
    config: dict[str, Any] = {}
    client = _certificates(options.pop("verify", None))
    if _flag(options, "anon"):
        config["skip_signature"] = True
        keys = None
    if _flag(options, "requester_pays"):
        config["request_payer"] = True
    if options.pop("addressing_style", "path") == "virtual":
        config["virtual_hosted_style_request"] = True
    secure = _flag(options, "use_ssl")
    endpoint = options.pop("endpoint", None)
    endpoint = endpoint or _from_environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    if isinstance(endpoint, str) and "://" not in endpoint:
        endpoint = f"{'http' if secure is False else 'https'}://{endpoint}"
    if endpoint is not None:
        config["endpoint"] = _server_url("endpoint_url", endpoint)
        client["allow_http"] = endpoint.startswith("http://")
    elif secure is False:
        raise OptionError(
            "use_ssl=False for S3 needs an endpoint_url of a server of your own, such as "
            "http://host:port: without one it is Amazon's, which is read over TLS only"
        )
    region = options.pop("region", None) or _from_environment("AWS_REGION", "AWS_DEFAULT_REGION")
    if region is not None:
        config["region"] = region
    metadata = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
    if metadata:  # the client knows it by another name
        config["metadata_endpoint"] = _server_url("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata)
    known = region is not None or endpoint is not None
    return S3Options(config, client, keys, region_known=known)


_CONFIG_IGNORED = ("connect_timeout", "max_pool_connections", "read_timeout", "retries")
"""Options of botocore for which the library has keywords of its own."""


def _flattened(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those inside s3fs' ``client_kwargs`` and ``config_kwargs``."""
    options = _meant("S3", given)
    inner = options.pop("client_kwargs", {})
    config = dict(options.pop("config_kwargs", {}))
    style = dict(config.pop("s3", {})).get("addressing_style")
    config.pop("signature_version", None)  # obstore signs by version 4, as all servers want today
    unknown = sorted(set(config) - {*_CONFIG_IGNORED})
    if unknown:
        raise OptionError(
            f"storage_options['config_kwargs'] for S3 has {unknown[0]!r}, which is not known; "
            f"known are s3, signature_version, {', '.join(_CONFIG_IGNORED)}"
        )
    if style is not None:
        options.setdefault("addressing_style", style)
    return {**_meant("S3", inner, "['client_kwargs']"), **options}


def _given_keys(options: Mapping[str, Any]) -> Keys | None:
    """Return a provider of the given keys.

    As plain configuration they would be mixed with a session token of the environment.
    """
    key, secret = options.get("access_key_id"), options.get("secret_access_key")
    token = options.get("session_token")
    if key is None and secret is None and token is None:
        return None
    if key is None or secret is None:
        raise OptionError("storage_options for S3 needs both key and secret, and has one of them")
    if not all(isinstance(value, str | None) for value in (key, secret, token)):
        raise OptionError("key, secret and token of storage_options for S3 must be strs")
    found = {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}
    return Keys(lambda: found)


def _profile(name: str | None, *, has_key: bool) -> tuple[dict[str, Any], Keys | None]:
    """Return the settings of an AWS profile, and its credentials by boto3.

    Keys of the environment come before those of a profile that is not named.
    """
    ambient = name is None
    name = name or _from_environment("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
    if name is None:
        identified = _from_environment("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")
        if has_key or identified or not any(map(os.path.exists, _aws_files())):
            return {}, None
    try:
        from botocore.exceptions import ProfileNotFound
        from botocore.session import Session
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        if name is None:
            return {}, None
        raise MissingExtraError.for_extra(
            "s3", f"boto3, which reads the AWS profile {name!r},"
        ) from None
    session = Session(profile=name)
    try:
        section = session.get_scoped_config()
    except ProfileNotFound:
        if has_key:
            return {}, None
        raise OptionError(f"no AWS profile is called {name!r}") from None
    found = {"region": section.get("region"), "endpoint": section.get("endpoint_url")}
    settings = {key: value for key, value in found.items() if value is not None}
    has_credentials = any(key.startswith(_CREDENTIAL_SETTINGS) for key in section)
    from_environment = ambient and os.environ.get("AWS_ACCESS_KEY_ID")
    if has_key or from_environment or not has_credentials:
        return settings, None
    try:
        keys = Keys(Boto3CredentialProvider(session))
        keys()  # or what is wrong would show late
        return settings, keys
    except Exception as error:  # its text may hold a command with secrets
        failed = type(error).__name__
    raise OptionError(f"the AWS profile {name or 'default'!r} gave no credentials: {failed}")


_CREDENTIAL_SETTINGS = (
    "aws_access_key_id",
    "credential_process",
    "role_arn",
    "sso_",
    "web_identity",
)


def _aws_files() -> list[str]:
    home = os.path.expanduser("~/.aws")
    return [
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", f"{home}/credentials"),
        os.environ.get("AWS_CONFIG_FILE", f"{home}/config"),
    ]


def bucket_region(bucket: str, host: str = "s3.amazonaws.com", *, secure: bool = True) -> str:
    """Return the region of a bucket, which anybody may ask for; us-east-1 if it is not known."""
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

_GCSFS_TOKENS = ("anon", "browser", "cache", "cloud", "google_default")


def is_gcs_emulator(given: Mapping[str, Any]) -> bool:
    """Return True if a server is named that speaks the JSON API only, as emulators do."""
    return bool(given.get("endpoint_url") or os.environ.get("STORAGE_EMULATOR_HOST"))


def gcsfs_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords of gcsfs, by which emulators are read."""
    options = _meant("Google Cloud Storage", given)
    if options.get("verify", True) is not True:
        raise OptionError(
            "storage option 'verify' does not go with endpoint_url (or STORAGE_EMULATOR_HOST) for "
            "Google Cloud Storage: gcsfs, which reads from there, trusts what Python trusts; set "
            "SSL_CERT_FILE, or give the server as base_url if it speaks the XML API"
        )
    if "endpoint_url" in options:
        options["endpoint_url"] = _server_url("endpoint_url", options["endpoint_url"])
    if _flag(options, "anon"):
        options["token"] = "anon"
    token = options.pop("bearer_token", options.get("token"))
    if "bearer_token" in _google_token(token) and token not in _GCSFS_TOKENS:
        from google.oauth2.credentials import Credentials

        token = Credentials(token)  # type: ignore[no-untyped-call]
    if token is not None:
        options["token"] = token
    known = ("token", "project", "access", "endpoint_url")
    return {name: value for name, value in options.items() if name in known}


def gcs_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return keywords and client options of obstore's ``GCSStore``."""
    options = _meant("Google Cloud Storage", given)
    for unused in ("project", "access"):
        options.pop(unused, None)
    client = _certificates(options.pop("verify", None))
    if options.get("base_url") is not None:
        options["base_url"] = _server_url("base_url", options["base_url"])
        client["allow_http"] = options["base_url"].startswith("http://")
    if _flag(options, "anon"):
        options["skip_signature"] = True
    options.update(_google_token(options.pop("token", None)))
    return options, client


def _google_token(token: Any) -> dict[str, Any]:
    """Return the meaning of gcsfs' ``token``: a name, a key or its path, or a bearer token."""
    if token is None or token in ("google_default", "cloud"):
        return {}
    if token == "anon":
        return {"skip_signature": True}
    if isinstance(token, Mapping):
        return {"service_account_key": json.dumps(dict(token))}
    if isinstance(token, str | os.PathLike):
        if os.path.exists(token):
            return {"application_credentials": os.fspath(token)}
        if isinstance(token, str) and not token.endswith(".json"):
            return {"bearer_token": token}
        raise OptionError("the file that storage option 'token' names does not exist")
    raise OptionError(
        "storage option 'token' for Google Cloud Storage must be 'anon', 'google_default', "
        f"the path or the content of a key, or a bearer token, not a {type(token).__name__}"
    )


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
"""By option: the kind of credential that obstore is told to use."""


def azure_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return keywords and client options of obstore's ``AzureStore``."""
    options = _meant("Azure", given)
    string = options.pop("connection_string", None)
    if string is None and not options:
        string = os.environ.get("AZURE_STORAGE_CONNECTION_STRING")
    if string is not None:
        options = {**_parse_connection_string(string), **options}
    client = _certificates(options.pop("verify", None))
    credential = options.pop("credential", None)
    if isinstance(credential, str):
        options.setdefault("sas_key" if "sig=" in credential else "account_key", credential)
    elif credential is not None:
        raise OptionError(
            "storage option 'credential' for Azure must be a key or a SAS token; of a credential "
            "object give the token: storage_options={'token': lambda: "
            "credential.get_token(...).token}"
        )
    if _flag(options, "anon"):
        options["skip_signature"] = True
    endpoint = options.get("endpoint")
    endpoint = endpoint or _from_environment("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    if endpoint is not None:
        if isinstance(endpoint, str) and "://" not in endpoint:
            endpoint = f"https://{endpoint}"
        options["endpoint"] = _server_url("endpoint_url", endpoint)
        client["allow_http"] = endpoint.startswith("http://")
    if options.get("sas_key"):
        options["sas_key"] = options["sas_key"].lstrip("?")
    kind = next((kind for name, kind in _AZURE_CREDENTIALS.items() if name in options), None)
    if kind is not None:  # or one of the environment may come before it
        options["credential_type"] = kind
    return options, client


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
    options = _meant("HTTP", given)
    inner = _meant("HTTP", options.pop("client_kwargs", {}), "['client_kwargs']")
    options = {**inner, **options}
    headers = dict(options.get("headers", {}))
    if "token" in options:
        headers["Authorization"] = f"Bearer {options['token']}"
    for name, value in headers.items():
        if not isinstance(value, str):
            raise OptionError(f"the header {name!r} must be a str, not a {type(value).__name__}")
        if not value.isprintable() or not all(ord(character) < 256 for character in value):
            raise OptionError(
                f"the header {name!r} holds characters that cannot be sent, such as a line break"
            )
    client = {"default_headers": headers, **_certificates(options.get("verify"))}
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
    options = _meant("the Hugging Face hub", given)
    endpoint = options.get("endpoint") or os.environ.get("HF_ENDPOINT")
    if endpoint is not None:
        endpoint = _server_url("endpoint", endpoint)
    return options.get("token"), endpoint
