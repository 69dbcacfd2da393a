"""What is no JSON index of a tar, and numbers that are no places, sizes or pixels."""

import pytest
from json_entries import PLACE, entry, read

from headrace.errors import StaleIndexError
from headrace.sources.tar._json_index import read_json_index

BAD = {
    "not json": (b'{"files": {"x.jpg"', "not JSON"),
    "not text": (b"\xff\xfe\x00\x80{", "not JSON"),
    "a list": (b"[1, 2]", "not an index"),
    "a number": (b"7", "not an index"),
    "no files": (b'{"filesize": 7}', "not an index"),
    "files are text": (b'{"files": "x"}', "not an index"),
    "deep": (b"[" * 200_000, "not JSON"),
    "entry is a number": (b'{"files": {"x.jpg": 7}}', "x.jpg"),
    "no name": (b'{"files": [{"offset": 1, "size": 2}]}', "entry 0"),
    "entry of a list is text": (b'{"files": ["x"]}', "entry 0"),
    "no offset": (b'{"files": {"x.jpg": {"size": 2}}}', "x.jpg.*offset is None"),
    "no size": (b'{"files": {"x.jpg": {"offset": 2}}}', "x.jpg.*length is None"),
    "name is no text": (b'{"files": {"\\ud800": {"offset": 2, "size": 1}}}', "not valid text"),
}
NUMBERS = {
    "float": 512.5,
    "text": "512",
    "true": True,
    "null": None,
    "negative": -1,
    "huge": 2**63,
    "enormous": 10**400,
    "list": [512],
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_index_is_refused(case):
    data, told = BAD[case]
    with pytest.raises(StaleIndexError, match=told) as caught:
        read_json_index(data, "s.json")
    assert "s.json" in str(caught.value)


@pytest.mark.parametrize("case", NUMBERS)
@pytest.mark.parametrize("key", ["offset", "length"])
def test_what_is_no_place_or_size_is_refused(key, case):
    document = {"files": {"ok.jpg": entry(), "x.jpg": {**entry(), key: NUMBERS[case]}}}
    with pytest.raises(StaleIndexError, match=rf"s\.json: member 'x\.jpg': {key} is"):
        read(document)


def test_numbers_may_be_floats_that_are_whole():
    files = {"x.jpg": {**entry(), "width": 512.0, "height": 384}, "y.jpg": entry(offset=4096.0)}
    index = read({"files": files})
    assert (index.widths.tolist(), index.heights.tolist()) == ([512, 0], [384, 0])
    assert index.offsets.tolist()[-1] == 4096


@pytest.mark.parametrize("case", sorted(NUMBERS.keys() - {"null"}))
@pytest.mark.parametrize("key", ["width", "height", "json_offset", "json_length"])
def test_other_numbers_are_refused_too(key, case):
    with pytest.raises(StaleIndexError, match=f"x.jpg.*{key}"):
        read({"files": {"x.jpg": entry(**{**PLACE, key: NUMBERS[case]})}})


@pytest.mark.parametrize("case", sorted(NUMBERS.keys() - {"null"}))
def test_a_size_of_the_tar_that_is_none_is_refused(case):
    with pytest.raises(StaleIndexError, match="filesize"):
        read({"filesize": NUMBERS[case], "files": {}})


@pytest.mark.parametrize("pixels", [2**31, 2**32 + 1, 2**62])
def test_pixels_that_are_too_many_are_refused(pixels):
    with pytest.raises(StaleIndexError, match=f"x.jpg.*width is {pixels}"):
        read({"files": {"x.jpg": entry(width=pixels, height=1)}})
