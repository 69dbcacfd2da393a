"""S3: options as s3fs and boto3 name them, and credentials as the AWS tools find them."""

from __future__ import annotations

import configparser
import http.client
import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from penstock.errors import MissingExtraError, OptionError
from penstock.storage.options.names import Names, flag

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
    credentials: dict[str, Any] | None = field(repr=False)
    """a key, its secret and its token; None: the client looks for them"""
    region_known: bool


def s3_options(given: Mapping[str, Any]) -> S3Options:
    """Options of any style, with what the environment and profiles add."""
    options = _flattened(given)
    profile = _profile(options.pop("profile", None), bool(options.get("access_key_id")))
    options = {**profile, **options}
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    if flag(options, "anon"):
        config["skip_signature"] = True
        for name in ("access_key_id", "secret_access_key", "session_token"):
            options.pop(name, None)
    if flag(options, "requester_pays"):
        config["request_payer"] = True
    if options.pop("addressing_style", "path") == "virtual":
        config["virtual_hosted_style_request"] = True
    secure = flag(options, "use_ssl")
    endpoint = options.pop("endpoint", None) or _from_environment(
        "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"
    )
    if endpoint is not None:
        if "://" not in endpoint:
            endpoint = f"{'http' if secure is False else 'https'}://{endpoint}"
        config["endpoint"] = endpoint.rstrip("/")
        client["allow_http"] = endpoint.startswith("http://")
    client.update(_certificates(options.pop("verify", None)))
    region = options.pop("region", None) or _from_environment("AWS_REGION", "AWS_DEFAULT_REGION")
    if region is not None:
        config["region"] = region
    known = region is not None or endpoint is not None
    return S3Options(config, client, _credentials(options), region_known=known)


def bucket_region(bucket: str, host: str = "s3.amazonaws.com", *, secure: bool = True) -> str:
    """Where a bucket is, which anybody may ask."""
    connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = connect(host, timeout=_REGION_TIMEOUT_S)
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


def _credentials(options: Mapping[str, Any]) -> dict[str, Any] | None:
    key, secret = options.get("access_key_id"), options.get("secret_access_key")
    if key is None and secret is None:
        return None
    if key is None or secret is None:
        raise OptionError("storage_options for S3 needs both key and secret, and has one of them")
    return {
        "access_key_id": key,
        "secret_access_key": secret,
        "token": options.get("session_token"),
        "expires_at": None,
    }


def _certificates(verify: Any) -> dict[str, Any]:
    if verify is False:
        return {"allow_invalid_certificates": True}
    if isinstance(verify, str | os.PathLike):
        with open(verify, "rb") as file:
            return {"root_certificate": file.read()}
    return {}


def _from_environment(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _profile(name: str | None, has_key: bool) -> dict[str, Any]:
    """What a profile of the AWS files says; keys in the environment come before a default one."""
    ambient = name is None
    name = name or _from_environment("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
    if name is None and (has_key or os.environ.get("AWS_ACCESS_KEY_ID")):
        return {}
    section = _section(name or "default")
    if not section:
        if name is not None and not has_key:
            raise OptionError(f"no AWS profile is called {name!r}")
        return {}
    found = {"region": section.get("region"), "endpoint": section.get("endpoint_url")}
    if not has_key and not (ambient and os.environ.get("AWS_ACCESS_KEY_ID")):
        found.update(_keys(section, name or "default"))
    return {key: value for key, value in found.items() if value is not None}


def _section(name: str) -> dict[str, str]:
    home = os.path.expanduser("~/.aws")
    shared = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", f"{home}/credentials")
    settings = os.environ.get("AWS_CONFIG_FILE", f"{home}/config")
    found: dict[str, str] = {}
    for file, title in ((settings, f"profile {name}"), (settings, name), (shared, name)):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read(file)
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        if parser.has_section(title):
            found.update(parser.items(title))
    return found


def _keys(section: Mapping[str, str], profile: str) -> dict[str, Any]:
    if "aws_access_key_id" in section:
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        meant = ("access_key_id", "secret_access_key", "session_token")
        return {m: section.get(n) for m, n in zip(meant, names, strict=True)}
    if "credential_process" in section:
        return _asked(section["credential_process"])
    if "role_arn" in section or any(name.startswith("sso_") for name in section):
        return _by_botocore(profile)
    return {}


def _asked(command: str) -> dict[str, Any]:
    done = subprocess.run(shlex.split(command), capture_output=True, check=False, timeout=60)
    if done.returncode:
        raise OptionError(f"credential_process of the AWS profile failed with {done.returncode}")
    try:
        told = json.loads(done.stdout)
        return {
            "access_key_id": told["AccessKeyId"],
            "secret_access_key": told["SecretAccessKey"],
            "session_token": told.get("SessionToken"),
        }
    except (ValueError, KeyError):
        raise OptionError("credential_process of the AWS profile gave no credentials") from None


def _by_botocore(profile: str) -> dict[str, Any]:
    """Roles and single sign-on are botocore's business."""
    try:
        from botocore.session import Session
    except ImportError:
        raise MissingExtraError(
            f"the AWS profile {profile!r} assumes a role or signs on, for which botocore is "
            "needed; run: pip install botocore"
        ) from None
    found = _botocore_session(Session, profile).get_credentials()
    if found is None:
        raise OptionError(f"botocore finds no credentials for the AWS profile {profile!r}")
    frozen = found.get_frozen_credentials()
    return {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "session_token": frozen.token,
    }


@cache
def _botocore_session(make: Any, profile: str) -> Any:
    """Kept, for it knows when its credentials expire, and gets others in time."""
    return make(profile=profile)
