"""A JSON index that is parsed in pieces says what it says as a whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import StaleIndexError
from headrace.sources.tar.json_index import json_index, read_json_index
from headrace.sources.tar.json_pieces import parsed_in_pieces

MANY = 9_000  # entries, which are several pieces


def in_pieces(text: str | bytes, piece_characters: int = 1) -> tuple[Any, list[Any]]:
    """What is said around the files, and the pieces of these."""
    pieces: list[Any] = []
    data = text.encode() if isinstance(text, str) else text
    return parsed_in_pieces(data, pieces.append, piece_characters=piece_characters), pieces


def joined(pieces: list[Any]) -> list[Any]:
    return [one for piece in pieces for one in (piece if type(piece) is list else piece.items())]


def as_pairs(text: str) -> Any:
    """The text as a whole, objects as lists of pairs, so that none gets lost."""
    return json.loads(text, object_pairs_hook=lambda pairs: ("object", pairs))


def assert_the_same(text: str, document: Any, pieces: list[Any]) -> None:
    kind, pairs = as_pairs(text)
    assert kind == "object"
    files = [value for key, value in pairs if key == "files"][-1]
    if isinstance(files, tuple):
        names = [name for name, _ in files[1]]
        assert [name for name, _ in joined(pieces)] == names
        entries = [entry for _, entry in joined(pieces)]
    else:
        names, entries = [], joined(pieces)
    whole = json.loads(text)
    if len(set(names)) == len(names):
        expected = whole["files"]
        assert repr(entries) == repr(list(expected.values() if names else expected))
    del whole["files"]
    assert repr(document) == repr(whole)


# --- texts that are indices

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text('ab"\\{}[], :é', max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
_entries = st.fixed_dictionaries(
    {"offset": st.integers(0, 2**70)},
    optional={"length": st.integers(), "aspect": st.floats(), "json_metadata": _values},
)
_names = st.text('xy.{}", :\\é', max_size=6)
_files = st.dictionaries(_names, _entries, max_size=6) | st.lists(_entries, max_size=6)
_around = st.dictionaries(st.sampled_from(["filesize", "hash", "a"]), _values)
_layouts = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])


@settings(deadline=None, max_examples=300)
@given(_around, _files, _around, _layouts, st.integers(0, 60))
def test_pieces_are_the_whole(before, files, behind, layout, piece_characters):
    text = json.dumps({**before, "files": files, **behind}, **layout)
    document, pieces = in_pieces(text, piece_characters)
    if document is not None:
        assert_the_same(text, document, pieces)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**63), max_size=9), _layouts, st.booleans())
def test_plain_entries_are_cut_into_pieces_of_one(offsets, layout, listed):
    named = {f"{n}.jpg": {"offset": offset, "size": n} for n, offset in enumerate(offsets)}
    files = [{"path": name, **entry} for name, entry in named.items()] if listed else named
    text = json.dumps({"filesize": 7, "files": files, "hash": None}, **layout)
    document, pieces = in_pieces(text)
    assert document == {"filesize": 7, "hash": None}
    assert [len(piece) for piece in pieces] == ([1] * len(offsets) or [0])
    assert_the_same(text, document, pieces)


def test_objects_inside_of_entries_are_not_cut():
    inside = {"a": {"x": 1}, "b": {"y": 2}, "c": [{"z": 3}, {"z": 4}]}
    entry = {"offset": 512, "size": 1, "json_metadata": inside, "captions": "}, "}
    text = json.dumps({"files": {f"{n}.jpg": entry for n in range(5)}})
    document, pieces = in_pieces(text)
    assert document == {}
    assert len(pieces) == 5
    assert_the_same(text, document, pieces)


# --- texts that look like one

_WORDS = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"files"',
    '"offset"',
    '"x"',
    '"',
    "\\",
    "NaN",
    "1",
    " ",
    "\f",
]
_WORDS += ['"files": {', '"x": {"offset": 1}', '{"offset": 1}', "}, ", '"x": ', '{"files": {']


@settings(max_examples=1000)
@given(st.lists(st.sampled_from(_WORDS), max_size=14).map("".join), st.integers(0, 30))
@example('{"a": {"files": {"x": {"offset": 1}}}}', 1)
@example('{"a": {"files": {"x": {"offset": 1}}}, "files": NaN}', 1)
@example('{"files": {"x": {"offset": 1}}, "files": {}}', 1)
@example('{"a\\"files": {"x": {"offset": 1}}}', 1)
@example('["files": {"x": {"offset": 1}}]', 1)
@example('{"files"\f: {"x": {"offset": 1}}}', 1)
@example('{"files": {"x": {"offset": 1}}, "y": {"offset": 1}}', 1)
@example('{"files": {"x": {"offset": 1}, }}', 1)
@example('{"files": {"x": {"offset": 1}}} {', 1)
def test_what_is_parsed_in_pieces_is_an_index(text, piece_characters):
    document, pieces = in_pieces(text, piece_characters)
    if document is not None:
        assert_the_same(text, document, pieces)


NOT_IN_PIECES = {
    "files inside": '{"a": {"files": {"x": {"offset": 1}}}}',
    "files again": '{"files": {"x": {"offset": 1}}, "files": {}}',
    "a name twice": '{"files": {"x": {"offset": 1}, "x": {"offset": 1}}}',
    "an offset twice": '{"files": {"x": {"offset": 1, "offset": 2}}}',
    "a constant": '{"a": NaN, "files": {"x": {"offset": 1}}}',
    "no end": '{"files": {"x": {"offset": 1}}',
    "a byte mark": '\ufeff{"files": {"x": {"offset": 1}}}',
    "deep": '{"files": {"x": ' + "[" * 100_000,
}


@pytest.mark.parametrize("case", NOT_IN_PIECES)
def test_what_pieces_cannot_tell_is_left_to_the_whole(case):
    assert in_pieces(NOT_IN_PIECES[case], 1000)[0] is None


def test_other_encodings_are_left_to_the_whole():
    text = '{"files": {"é.jpg": {"offset": 512, "size": 1}}}'
    for encoding in ("utf-16", "utf-32", "utf-8-sig"):
        assert in_pieces(text.encode(encoding))[0] is None
        index = read_json_index(text.encode(encoding), "s.json")
        assert index.names.to_pylist() == ["é.jpg"]


# --- indices of many pieces


def entry_of(number: int) -> dict[str, Any]:
    """One of several kinds."""
    entry: dict[str, Any] = {"offset": 512 + 1024 * number, "length": number}
    if number % 3 == 0:
        entry |= {"width": 3, "height": 2, "aspect": 1.5 if number % 2 else 1.4}
    if number % 5 == 0:
        entry |= {"captions": [f"é {number}"], "json_metadata": {"n": number}}
    if number % 1000 == 0:
        entry |= {"other": 2**70, "width": None, "prompt": "hi", "sha256": 7}
    return entry


def many(**changed: dict[str, Any]) -> dict[str, Any]:
    files = {f"{n}.jpg": entry_of(n) for n in range(MANY)}
    return {"filesize": 1024 * MANY + 512, "files": {**files, **changed}, "hash": None}


def test_an_index_of_many_pieces_says_the_same_again():
    text = json.dumps(many()).encode()
    document, pieces = in_pieces(text, 1 << 17)
    assert document is not None
    assert len(pieces) > 3
    index = read_json_index(text, "s.json")
    assert json.loads(json_index(index)) == many()
    assert index.sizes.tolist() == list(range(MANY))
    assert index.captions[8000].as_py() == '["é 8000"]'


def test_a_list_of_many_pieces_says_the_same_again():
    listed = many()
    listed["files"] = [{"path": name, **entry} for name, entry in listed["files"].items()]
    index = read_json_index(json.dumps(listed).encode(), "s.json")
    assert json.loads(json_index(index)) == listed


def test_a_name_of_two_pieces_is_two_members():
    text = json.dumps(many()).replace(f'"{MANY - 1}.jpg"', '"0.jpg"')
    index = read_json_index(text.encode(), "s.json")
    assert len(index) == MANY
    assert index.names[0] == index.names[MANY - 1]


@pytest.mark.parametrize("value", [-1, 2**63, 7.0, True, None, "7"])
def test_what_is_wrong_in_a_later_piece_is_told(value):
    wrong = many(**{"8000.jpg": {"offset": value, "length": 1}})
    with pytest.raises(StaleIndexError, match=r"s\.json: member '8000\.jpg': offset is"):
        read_json_index(json.dumps(wrong).encode(), "s.json")


def test_what_is_no_entry_in_a_later_piece_is_told():
    text = json.dumps(many()).replace('{"offset": 8192512, "length": 8000', '7, "y": {"offset": 1')
    with pytest.raises(StaleIndexError, match=r"member '8000\.jpg': its entry is no JSON object"):
        read_json_index(text.encode(), "s.json")
    listed = json.dumps({"files": [{"path": "x", **entry_of(n)} for n in range(MANY)]})
    text = listed.replace('"path": "x", "offset": 8192512', '"offset": 8192512')
    with pytest.raises(StaleIndexError, match="entry 8000 of its files has no name"):
        read_json_index(text.encode(), "s.json")


def test_a_text_that_breaks_off_is_told_by_where_it_does():
    text = json.dumps(many()).encode()[:-20]
    with pytest.raises(json.JSONDecodeError) as broken:
        json.loads(text)
    with pytest.raises(StaleIndexError, match="not JSON") as told:
        read_json_index(text, "s.json")
    assert str(broken.value) in str(told.value)


def test_that_a_text_breaks_off_is_told_before_what_its_entries_lack():
    nameless = json.dumps({"files": [entry_of(n) for n in range(MANY)]}).encode()
    with pytest.raises(StaleIndexError, match="entry 0 of its files has no name"):
        read_json_index(nameless, "s.json")
    with pytest.raises(StaleIndexError, match="not JSON"):
        read_json_index(nameless[:-20], "s.json")
