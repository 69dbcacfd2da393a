"""S3: options as s3fs and boto3 name them, and credentials as the AWS tools find them."""

from __future__ import annotations

import http.client
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import OptionError
from headrace.storage.options.aws_profiles import Keys, keys_of, section_of
from headrace.storage.options.names import Names, certificates, flag, server_url
from headrace.storage.pace import PacedResponse

__all__ = ["S3Options", "bucket_region", "s3_options"]

_NAMES = Names(
    "S3",
    access_key_id="key access_key_id aws_access_key_id access_key",
    secret_access_key="secret secret_access_key aws_secret_access_key secret_key",
    session_token="token session_token aws_session_token",
    anon="anon anonymous skip_signature",
    endpoint="endpoint_url endpoint endpoint_override aws_endpoint_url",
    region="region region_name aws_region",
    profile="profile profile_name",
    requester_pays="requester_pays request_payer",
    use_ssl="use_ssl",
    verify="verify",
    addressing_style="addressing_style",
    client_kwargs="client_kwargs",
    config_kwargs="config_kwargs",
)
_CONFIG_IGNORED = ("connect_timeout", "max_pool_connections", "read_timeout", "retries")
"""of botocore's configuration; there are keywords for these"""
_REGION_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class S3Options:
    """What the client is given."""

    config: dict[str, Any]
    client: dict[str, Any]
    keys: Keys | None = field(repr=False)
    """None: the client looks for some"""
    region_known: bool


def s3_options(given: Mapping[str, Any]) -> S3Options:
    """Options of any style, with what the environment and profiles add."""
    options = _flattened(given)
    keys = _given_keys(options)
    settings, found = _profile(options.pop("profile", None), keys is not None)
    keys = keys or found
    options = {**settings, **options}
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    if flag(options, "anon"):
        config["skip_signature"] = True
        keys = None
    if flag(options, "requester_pays"):
        config["request_payer"] = True
    if options.pop("addressing_style", "path") == "virtual":
        config["virtual_hosted_style_request"] = True
    secure = flag(options, "use_ssl")
    endpoint = options.pop("endpoint", None) or _from_environment(
        "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"
    )
    if endpoint is not None:
        if isinstance(endpoint, str) and "://" not in endpoint:
            endpoint = f"{'http' if secure is False else 'https'}://{endpoint}"
        config["endpoint"] = server_url("endpoint_url", endpoint)
        client["allow_http"] = endpoint.startswith("http://")
    elif secure is False:
        raise OptionError(
            "use_ssl=False for S3 needs an endpoint_url of a server of your own, such as "
            "http://host:port: without one it is Amazon's, which is read over TLS only"
        )
    client.update(certificates(options.pop("verify", None)))
    region = options.pop("region", None) or _from_environment("AWS_REGION", "AWS_DEFAULT_REGION")
    if region is not None:
        config["region"] = region
    role = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
    if role:  # the client knows it by another name
        config["metadata_endpoint"] = server_url("AWS_EC2_METADATA_SERVICE_ENDPOINT", role)
    known = region is not None or endpoint is not None
    return S3Options(config, client, keys, region_known=known)


def bucket_region(bucket: str, host: str = "s3.amazonaws.com", *, secure: bool = True) -> str:
    """Where a bucket is, which anybody may ask."""
    connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = connect(host, timeout=_REGION_TIMEOUT_S)
    connection.response_class = PacedResponse
    try:
        connection.request("HEAD", f"/{bucket}")
        return connection.getresponse().getheader("x-amz-bucket-region") or "us-east-1"
    except (OSError, http.client.HTTPException):  # whatever it is, the reading itself will tell
        return "us-east-1"
    finally:
        connection.close()


def _flattened(given: Mapping[str, Any]) -> dict[str, Any]:
    """With what is inside ``client_kwargs`` and ``config_kwargs``, as s3fs takes them."""
    options = _NAMES.meant(given)
    inner = options.pop("client_kwargs", {})
    config = dict(options.pop("config_kwargs", {}))
    style = dict(config.pop("s3", {})).get("addressing_style")
    if config.pop("signature_version", None) is not None and len(config) == 0:
        pass  # all there is today is version 4
    unknown = sorted(set(config) - {*_CONFIG_IGNORED})
    if unknown:
        raise OptionError(
            f"storage_options['config_kwargs'] for S3 has {unknown[0]!r}, which is not known; "
            f"known are s3, signature_version, {', '.join(_CONFIG_IGNORED)}"
        )
    if style is not None:
        options.setdefault("addressing_style", style)
    return {**_NAMES.meant(inner, "['client_kwargs']"), **options}


def _given_keys(options: Mapping[str, Any]) -> Keys | None:
    key, secret = options.get("access_key_id"), options.get("secret_access_key")
    token = options.get("session_token")
    if key is None and secret is None and token is None:
        return None
    if key is None or secret is None:
        raise OptionError("storage_options for S3 needs both key and secret, and has one of them")
    if not all(isinstance(value, str | None) for value in (key, secret, token)):
        raise OptionError("key, secret and token of storage_options for S3 must be strs")
    return Keys.fixed(key, secret, token)


def _from_environment(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _profile(name: str | None, has_key: bool) -> tuple[dict[str, Any], Keys | None]:
    """What a profile says, and its keys; those of the environment come before a default one's."""
    ambient = name is None
    name = name or _from_environment("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
    identified = _from_environment("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")
    if name is None and (has_key or identified):
        return {}, None
    section = section_of(name or "default")
    if not section:
        if name is not None and not has_key:
            raise OptionError(f"no AWS profile is called {name!r}")
        return {}, None
    found = {"region": section.get("region"), "endpoint": section.get("endpoint_url")}
    settings = {key: value for key, value in found.items() if value is not None}
    if has_key or (ambient and os.environ.get("AWS_ACCESS_KEY_ID")):
        return settings, None
    return settings, keys_of(section, name or "default")
