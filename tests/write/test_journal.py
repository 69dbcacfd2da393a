"""The journal of a copy: complete lines, decisions, and journals of other work."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import (
    StateMismatchError,
)
from headrace.write._journal import Journal


def test_a_journal_keeps_whole_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {"what": "ä"})
    assert journal.decide("size", lambda: 1) == 1
    journal.note_result("a", 1, {"rows": 1})
    journal.note_result("a", 2, {"rows": 2})
    journal.close()
    path = tmp_path / "headrace.jsonl"
    path.write_bytes(path.read_bytes()[:-3])
    for parts in ([1], [1, 3]):
        journal = Journal(tmp_path, {"what": "ä"})
        assert journal.resumed
        assert journal.decide("size", lambda: 2) == 1
        assert journal.results("a") == {part: {"rows": part} for part in parts}
        assert journal.results("b") == {}
        if parts == [1]:
            journal.note_result("a", 3, {"rows": 3})
        journal.close()
    with pytest.raises(StateMismatchError, match="these differ: what"):
        Journal(tmp_path, {"what": "b"})
    Journal(tmp_path, {"what": "ä"}).close()  # the refused one does not hold the lock


def test_a_journal_of_nothing_or_of_what_came_once_is_not_continued(tmp_path: Path) -> None:
    begun = Journal(tmp_path, {"what": "a"})
    begun.decide("size", lambda: 1)
    begun.close()
    once = Journal(tmp_path, {"what": "b"}, once=True)
    assert not once.resumed
    assert once.decide("size", lambda: 2) == 2
    once.note_result("a", 1, {})
    once.close()
    journal = Journal(tmp_path, {"what": "c"})
    assert not journal.resumed
    assert journal.results("a") == {}
    journal.close()
