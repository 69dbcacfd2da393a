"""Which words of a text are secrets, and what is shown in their place."""

from __future__ import annotations

import pytest

from headrace.storage._redaction import Redaction, has_secret, public_url, without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:pw@h/x", "http://***@h/x"),
        ("http://me:p@w@h/x", "http://***@h/x"),
        ("http://tok@h/x?id=1&sig=b&page=2", "http://***@h/x?id=1&sig=***&page=2"),
        (
            "http://h/x?code=a&hmac=b&session=c&k=d",
            "http://h/x?code=***&hmac=***&session=***&k=***",
        ),
        ("http://h/x?c%6Fde=a&[k]=b&a.b=c", "http://h/x?c%6Fde=***&[k]=***&a.b=***"),
        ("http://h/x?code=a,b, http://h/y", "http://h/x?code=***, http://h/y"),
        ("http://h/x?page=1;code=a", "http://h/x?page=***"),
        ("http://h/x?file=http%3A%2F%2Fme%3Apw%40h", "http://h/x?file=***"),
        ("http://h/x?file=http%3A%2F%2Fh%3Fk%3Da", "http://h/x?file=***"),
        ("GET /x?k=a HTTP/1.1", "GET /x?k=*** HTTP/1.1"),
        ("'/x?page=1&amp;k=a'", "'/x?page=1&amp;k=***'"),
        ("webdav://h/x?k=a", "webdav://h/x?k=***"),
        ("s3://b/x,https://h/x?k=a", "s3://b/x,https://h/x?k=***"),
        ("GET /x?X-Amz-Signature=b&X-Amz-Security-Token=c done", None),
        (
            "http://h/x?OSSAccessKeyId=b&security-token=c",
            "http://h/x?OSSAccessKeyId=***&security-token=***",
        ),
        ("http://h/x?q-sign-time=b&q-ak=c", "http://h/x?q-sign-time=***&q-ak=***"),
        ("http://h/x?jwt=b&sas=c", "http://h/x?jwt=***&sas=***"),
        ("http://h/x?pwd=b&hdnts=exp=1~hmac=c", "http://h/x?pwd=***&hdnts=***"),
        ("<Token-0>abc</Token-0>", "<Token-0>***</Token-0>"),
        ("<StringToSign>abc", "<StringToSign>***"),
        ("authorization: Bearer abc", "authorization: Bearer ***"),
        ("{'Authorization': 'Basic abc='}", "{'Authorization': 'Basic ***'}"),
        ("x-amz-security-token:abc", "x-amz-security-token:***"),
    ],
)
def test_what_is_hidden(text: str, shown: str | None) -> None:
    if shown is None:
        shown = "GET /x?X-Amz-Signature=***&X-Amz-Security-Token=*** done"
    assert without_secrets(text) == shown
    assert has_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://b/key=1/token=a b/policy=c/expires=2/x.parquet",
        "abfss://c@account.dfs.core.windows.net/d",
        "az://c@account.blob.core.windows.net/d",
        "hf://datasets/o/n@refs/convert/parquet/x",
        "https://h/d?page=2&sort=key",
        "https://h/d?versionId=Ab.c-1&download=1&raw=true&dl=1&file=a/b.parquet",
        "https://h/d/year=202?/month=1/*.parquet",
        "https://h/d/part-?.parquet",
        "s3://b/run-?-lr=1/x.parquet",
        "mail me@there, or see http://h/x, and y@z",
    ],
)
def test_what_is_shown(text: str) -> None:
    assert without_secrets(text) == text
    assert not has_secret(text)


def test_urls_that_are_shown() -> None:
    assert public_url("https://u:p@h:1/a%20b?id=1&sig=2&sv=3&v=4#f") == "https://h:1/a%20b?id=1&v=4"
    assert public_url("https://h/a?code=1&raw=1&k=2") == "https://h/a?raw=1"
    assert public_url("https://h/a?X-Amz-Date=1&X-Amz-Signature=2") == "https://h/a"


def test_parts_of_secrets_are_hidden() -> None:
    pem = (
        "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END"
    )
    hide = Redaction(
        {
            "connection_string": "AccountName=me;AccountKey=a/b+c==;EndpointSuffix=x.net",
            "sas_token": "sv=1&sig=q%2Fr%3D",
            "auth": ("user", "pass word"),
            "token": {"private_key": pem},
            "url": "https://me:p%40ss@host/x?code=c%2Fde&page=here",
            "endpoint_url": "http://here",
            "region": "us-east-1",
        }
    )
    for secret in ("a/b+c==", "a%2Fb%2Bc%3D%3D", "q/r=", "q%2Fr%3D", "pass word", "p@ss", "c/de"):
        assert secret not in hide(f"so {secret} is"), secret
    assert "MIIEvQIBADANBgkqhkiG9w0B" not in hide("bad line MIIEvQIBADANBgkqhkiG9w0B!")
    assert "dXNlcjpwYXNzIHdvcmQ" not in hide("Basic dXNlcjpwYXNzIHdvcmQ=")
    assert hide("http://here us-east-1") == "http://here us-east-1"


def test_secrets_of_the_environment_are_hidden_without_any_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-environment")
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    assert Redaction()("signed by of-the-environment in eu-west-3") == "signed by *** in eu-west-3"
