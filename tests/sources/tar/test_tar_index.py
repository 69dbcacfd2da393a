import json
import os

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import StaleIndexError, WriteError
from headrace.sources.tar._json_index import read_json_index
from headrace.sources.tar.index import IndexFile, TarFacts, TarIndex, write_index

COUNT = 1000


def index_of(count: int = COUNT, **more: object) -> TarIndex:
    """Pairs of an image and its JSON."""
    names = [f"{n // 2:06d}.{'json' if n % 2 else 'jpg'}" for n in range(count)]
    offsets = 512 + 2048 * np.arange(count, dtype=np.int64)
    sizes = np.full(count, 1000, np.int64)
    return TarIndex(pa.array(names, pa.string()), offsets, sizes, **more)


def geometry(count: int = COUNT) -> dict[str, object]:
    widths, heights = np.zeros((2, count), np.int32)
    widths[::2], heights[::2] = 64 + np.arange(count // 2) % 3, 64
    return {"widths": widths, "heights": heights}


def test_each_tar_has_its_own_index(tmp_path):
    path = tmp_path / "all.idx.arrow"
    first = index_of(
        facts=TarFacts(size=7, hash_lfs="h", last_good="x", has_end=False, extras='{"a": 1}')
    )
    second = index_of(6, **geometry(6), captions=pa.array(['"hi"'] + [None] * 5))
    write_index(path, [("a/s.tar", first), ("b/s.tar", second), ("c.tar", index_of(0))])
    opened = IndexFile.open(path)
    assert list(opened.tars) == ["a/s.tar", "b/s.tar", "c.tar"]
    assert [len(opened.index(tar)) for tar in range(3)] == [COUNT, 6, 0]
    assert [opened.index(tar).num_samples for tar in range(3)] == [COUNT // 2, 3, 0]
    assert opened.index(0).facts == first.facts
    assert opened.index(0).widths is None
    assert opened.index(0).captions is None
    assert opened.index(1).names.equals(second.names)
    assert opened.index(1).captions.to_pylist() == second.captions.to_pylist()
    assert opened.index(1).widths.tolist() == second.widths.tolist()
    assert opened.index(1).shape_members.tolist() == second.shape_members.tolist()
    assert len(opened.index(2)) == 0


def test_columns_that_no_tar_has_are_not_there(tmp_path):
    write_index(tmp_path / "s.idx.arrow", [("s.tar", index_of())])
    with pa.ipc.open_file(str(tmp_path / "s.idx.arrow")) as file:
        assert file.schema.names == ["name", "offset", "size", "sample", "field"]


def test_a_file_that_is_written_over_or_cut_while_it_is_open(tmp_path):
    path, other = tmp_path / "s.idx.arrow", tmp_path / "other.idx.arrow"
    right, wrong = index_of(20_000, **geometry(20_000)), index_of(20_000, **geometry(20_000))
    wrong.offsets[:] = wrong.offsets[::-1].copy()
    write_index(path, [("s.tar", right)])
    write_index(other, [("s.tar", wrong)])
    index = IndexFile.open(path).index(0)
    with open(path, "r+b") as file:
        file.write(other.read_bytes())
    assert index.offsets.tolist() == right.offsets.tolist()
    os.truncate(path, 100)
    assert index.sizes.tolist() == right.sizes.tolist()
    assert index.names.equals(right.names)
    assert index.grouping.samples.tolist() == right.grouping.samples.tolist()
    assert index.shape_members.tolist() == right.shape_members.tolist()


def test_a_member_takes_at_most_40_bytes_beside_its_name(tmp_path):
    count = 100_000
    path = tmp_path / "s.idx.arrow"
    write_index(path, [("s.tar", index_of(count, **geometry(count)))])
    index = IndexFile.open(path).index(0)
    _, starts, letters = index.names.buffers()
    arrays = [index.offsets, index.sizes, index.widths, index.heights]
    arrays += [index.grouping.samples, index.grouping.fields, index.shape_members]
    taken = sum(array.nbytes for array in arrays) + starts.size
    assert taken <= 40 * count + 64
    assert path.stat().st_size <= 40 * count + letters.size + 10_000


def test_an_index_from_json_takes_no_more(tmp_path):
    files = {f"{n:06d}.jpg": {"offset": 512 + 1024 * n, "size": 9} for n in range(10_000)}
    index = read_json_index(json.dumps({"files": files}).encode(), "s")
    arrays = (index.offsets, index.sizes, index.grouping.samples, index.grouping.fields)
    assert sum(array.nbytes for array in arrays) + index.names.buffers()[1].size <= 400_000 + 64


def test_what_is_stored_is_what_would_be_computed(tmp_path):
    path = tmp_path / "s.idx.arrow"
    index = index_of(**geometry())
    write_index(path, [("s.tar", index)])
    stored = IndexFile.open(path).index(0)
    assert stored.stored_grouping is not None
    assert stored.grouping.samples.tolist() == index.grouping.samples.tolist()
    assert stored.grouping.field_names == index.grouping.field_names
    assert stored.primary_members.tolist() == index.primary_members.tolist()
    assert stored.shape_members.tolist() == index.shape_members.tolist()


def test_a_file_that_is_cut_short_is_refused(tmp_path):
    path = tmp_path / "s.idx.arrow"
    write_index(path, [("s.tar", index_of())])
    whole = path.read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(StaleIndexError, match=r"s\.idx\.arrow"):
            IndexFile.open(path)


def test_damage_is_refused_or_does_no_harm(tmp_path):
    path = tmp_path / "s.idx.arrow"
    captions = pa.array([None, '"a dog"'] * 25)
    facts = TarFacts(size=1_000_000, etag="17")
    right = index_of(50, **geometry(50), captions=captions, facts=facts)
    write_index(path, [("s.tar", right)])
    whole = path.read_bytes()
    refused: list[str] = []
    for place in range(len(whole)):
        for bit in (1, 16, 255):
            damaged = bytearray(whole)
            damaged[place] ^= bit
            try:
                index = IndexFile.open(pa.py_buffer(bytes(damaged)), "s.idx.arrow").index(0)
                assert contents(index) == contents(right), place
            except StaleIndexError as error:
                refused.append(str(error))
    assert len(refused) > len(whole)
    assert all("s.idx.arrow" in text for text in refused)


def contents(index: TarIndex) -> list[object]:
    columns = [index.names, index.captions, index.offsets, index.sizes, index.widths, index.heights]
    grouping = index.grouping
    columns += [grouping.samples, grouping.fields]
    return [index.facts, grouping.field_names, *(column.tolist() for column in columns)]


@pytest.mark.parametrize("metadata", [None, {"version": 1, "tars": []}, {"version": 3}, []])
def test_another_arrow_file_is_refused(tmp_path, metadata):
    schema = pa.schema([("name", pa.string())])
    if metadata is not None:
        schema = schema.with_metadata({"headrace.tar_index": json.dumps(metadata)})
    with pa.ipc.new_file(str(tmp_path / "s.idx.arrow"), schema):
        pass
    with pytest.raises(StaleIndexError, match=r"s\.idx"):
        IndexFile.open(tmp_path / "s.idx.arrow")


def test_a_file_that_does_not_exist_is_not_stale(tmp_path):
    with pytest.raises(FileNotFoundError):
        IndexFile.open(tmp_path / "none")


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "s.idx.arrow"
    write_index(path, [("s.tar", index_of(4))])
    wrong = TarIndex(pa.array(["a.b", "c.d"]), np.array([512]), np.array([3]))
    with pytest.raises((pa.ArrowInvalid, ValueError)):
        write_index(path, [("s.tar", wrong)])
    assert len(IndexFile.open(path).index(0)) == 4
    assert os.listdir(tmp_path) == ["s.idx.arrow"]


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="file"):
        write_index(tmp_path / "file" / "s.idx.arrow", [("s.tar", index_of(4))])
