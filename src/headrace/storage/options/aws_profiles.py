"""Profiles of the AWS tools: files with keys, or with who is to be asked for them."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache, partial
from typing import Any

from headrace.errors import MissingExtraError, OptionError

__all__ = ["Keys", "keys_of", "section_of"]

_PATIENCE_S = 60.0


class Keys:
    """What the client calls for credentials, again when they expire. Knows those it gave."""

    def __init__(self, ask: Callable[[], dict[str, Any]]) -> None:
        self._ask = ask
        self._first: dict[str, Any] | None = ask()  # or what is wrong would show late, and often
        self.secrets: set[str] = set()
        self._note(self._first)

    @classmethod
    def fixed(cls, key: str, secret: str, token: str | None) -> Keys:
        """Keys that do not expire."""
        found = {"access_key_id": key, "secret_access_key": secret, "token": token}
        return cls(lambda: {**found, "expires_at": None})

    def __call__(self) -> dict[str, Any]:
        found, self._first = self._first or self._ask(), None
        self._note(found)
        return found

    def _note(self, found: Mapping[str, Any]) -> None:
        self.secrets.update(value for value in found.values() if isinstance(value, str))


def section_of(name: str) -> dict[str, str]:
    """What the files say of a profile; nothing if there is none."""
    home = os.path.expanduser("~/.aws")
    shared = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", f"{home}/credentials")
    settings = os.environ.get("AWS_CONFIG_FILE", f"{home}/config")
    found: dict[str, str] = {}
    for file, title in ((settings, f"profile {name}"), (settings, name), (shared, name)):
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read(os.path.expanduser(file))
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        if parser.has_section(title):
            found.update(parser.items(title))
    return found


def keys_of(section: Mapping[str, str], profile: str) -> Keys | None:
    """The keys of a profile; None if it has none, and no way to get some."""
    if "aws_access_key_id" in section:
        if "aws_secret_access_key" not in section:
            raise OptionError(f"the AWS profile {profile!r} has a key and no secret")
        return Keys.fixed(
            section["aws_access_key_id"],
            section["aws_secret_access_key"],
            section.get("aws_session_token"),
        )
    if "credential_process" in section:
        return Keys(partial(_asked, section["credential_process"], profile))
    if "role_arn" in section or any(name.startswith("sso_") for name in section):
        return Keys(partial(_by_botocore, profile))
    return None


def _asked(command: str, profile: str) -> dict[str, Any]:
    told = _told(command)
    if isinstance(told, Mapping) and {"AccessKeyId", "SecretAccessKey"} <= told.keys():
        return {
            "access_key_id": told["AccessKeyId"],
            "secret_access_key": told["SecretAccessKey"],
            "token": told.get("SessionToken"),
            "expires_at": _moment(told.get("Expiration")),
        }
    raise OptionError(f"credential_process of the AWS profile {profile!r} gave no credentials")


def _told(command: str) -> Any:
    """What a command prints, as JSON; neither it nor that is shown, for both may be secret."""
    try:
        words = shlex.split(command) or ["false"]
        done = subprocess.run(words, capture_output=True, check=True, timeout=_PATIENCE_S)
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _moment(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.astimezone()


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
        "token": frozen.token,
        "expires_at": getattr(found, "_expiry_time", None),
    }


@cache
def _botocore_session(make: Any, profile: str) -> Any:
    """Kept, for it knows when its credentials expire, and gets others in time."""
    return make(profile=profile)
