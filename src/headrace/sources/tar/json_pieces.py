"""A JSON index parsed in pieces, so that there are never more objects than those of one piece.

Memory that has just been let go of is in the caches of the processor: a text takes half the time
when what was parsed of it becomes columns before more is.

Where a text is cut is guessed, and what comes of it is right. The grammar of JSON has one way to
read a text: if pieces are members of an object each, then all of them with commas between are the
members of one object, in that order; and a text in which a value is put in place of another is
read as before, with that value. A guess that is wrong leaves a piece that is no JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from headrace.errors import StaleIndexError

__all__ = ["Members", "parsed_in_pieces"]

Members = dict[str, Any] | list[Any]

_SPACE = r"[ \t\n\r]*"
_NAMED = rf'(?:"[^"\\]*"{_SPACE}:{_SPACE})?'
_FILES = re.compile(rf'"files"{_SPACE}:{_SPACE}([{{\[])')
_FIRST_KEY = re.compile(rf'{_SPACE}{_NAMED}\{{{_SPACE}("[^"\\]*")')
_CLOSING = {"{": "}", "[": "]"}
_PIECE_CHARACTERS = 1 << 17

Take = Callable[[Members], None]


def parsed_in_pieces(
    data: bytes, take: Take, *, piece_characters: int = _PIECE_CHARACTERS
) -> dict[str, Any] | None:
    """Give what is under "files" to ``take``, piece by piece; returns all else that is said.

    Of each piece as many words are "offset" as there are members. None if the text is no such
    index, or is not to be cut where it was: then what was taken means nothing, and the text has to
    be parsed as a whole, which also tells what is wrong with it.
    """
    try:
        text = data.decode()
        files = _FILES.search(text)
        if files is None:
            return None
        end = _take_members(text, files.end(), files[1], take, piece_characters)
        return _without_files(text[: files.start()], text[end:])
    except (ValueError, RecursionError, StaleIndexError):
        return None


def _take_members(text: str, start: int, opening: str, take: Take, piece_characters: int) -> int:
    """All that stands behind an opening bracket; returns where that ends."""
    between = _between_entries(text, start)
    while (cut := between.search(text, start + piece_characters)) is not None:
        stop = cut.end() - 1
        members = json.loads(f"{opening}{text[start:stop]}{_CLOSING[opening]}")
        take(_counted(members, text, start, stop))
        start = cut.end()
    members, end = json.JSONDecoder().raw_decode(opening + text[start:])
    stop = start + end - len(opening)
    take(_counted(members, text, start, stop))
    return stop


def _between_entries(text: str, start: int) -> re.Pattern[str]:
    """The end of an entry and the comma behind it, before one that begins as the first does."""
    first = _FIRST_KEY.match(text, start)
    key = "" if first is None else re.escape(first[1])
    return re.compile(rf"\}}{_SPACE},(?={_SPACE}{_NAMED}\{{{_SPACE}{key})")


def _counted(members: Members, text: str, start: int, stop: int) -> Members:
    """Members of a piece, of which none replaced another of its name."""
    if text.count('"offset"', start, stop) != len(members):
        raise ValueError("names repeat, or entries say more than one offset, or none")
    return members


def _without_files(before: str, behind: str) -> dict[str, Any]:
    """What a text says around "files", if that is a key of its outermost object, and the last."""
    constants: list[object] = []

    def constant(_: str) -> object:
        constants.append(object())
        return constants[-1]

    document = json.loads(f'{before}"files": NaN{behind}', parse_constant=constant)
    if type(document) is not dict or [document.pop("files", None)] != constants:
        raise ValueError("those files are not the ones of the index")
    return document
