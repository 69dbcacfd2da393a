"""Sizes as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import OptionError
from headrace.plan import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        (10**30, 10**30),
        ("1", 1),
        ("64 B", 64),
        ("1k", 1000),
        ("1KB", 1000),
        ("1kib", 1024),
        (" 128MiB ", 128 << 20),
        ("1.5 kB", 1500),
        ("0.5GiB", 1 << 29),
        ("2TB", 2 * 10**12),
        ("3 TiB", 3 << 40),
        ("9007199254740993", 2**53 + 1),
        ("0.1kB", 100),
    ],
)
def test_sizes(text: int | str, size: int) -> None:
    assert parse_bytes("split_bytes", text) == size


@pytest.mark.parametrize(
    "wrong",
    [0, -1, True, 1.5, None, "", "MiB", "1 MiBs", "-1", "1e6", "0", "0.5B", "1..5k", "1,5k", [1]],
)
def test_what_is_no_size_is_named(wrong: Any) -> None:
    with pytest.raises(OptionError) as caught:
        parse_bytes("prefetch_bytes", wrong)
    assert "prefetch_bytes" in str(caught.value)
    assert repr(wrong) in str(caught.value)


def test_an_absurd_size_is_no_crash() -> None:
    assert parse_bytes("split_bytes", "9" * 400) == int("9" * 400)
