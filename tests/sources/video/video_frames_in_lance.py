"""What ``test_video_backend.py`` runs in a process of its own."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from video_rows import frames, pixels, video_list, write

from headrace import VideoFramesDataset
from headrace.access import StorageBackend
from headrace.errors import OptionError, ReadError, SchemaError, StateMismatchError
from headrace.loader._epoch import SkippedDataWarning
from headrace.sources.video.backend import VideoFramesBackend

COUNTS = [40, 7, 0, 25, 3]
WINDOWS = {"window_length": 4, "frame_skip": 1, "hop_size": 3}
SPAN = 7
EXPECTED = [
    (video, start) for video, count in enumerate(COUNTS) for start in range(0, count - SPAN + 1, 3)
]


class Clips(Dataset[torch.Tensor]):
    """Windows one by one, as a user might write it."""

    def __init__(self, backend: VideoFramesBackend) -> None:
        self.backend = backend

    def __len__(self) -> int:
        return len(self.backend)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.backend.get_row(index)["video"])


def clip(video: int, start: int) -> np.ndarray:
    return np.array([pixels(video, start + 2 * step) for step in range(4)])


def clips() -> np.ndarray:
    return np.array([clip(*window) for window in EXPECTED])


def with_broken_frame(row: int) -> pa.Table:
    rows = frames(COUNTS)
    data = rows["bytes"].to_pylist()
    data[row] = b"broken"
    return rows.set_column(2, rows.schema.field(2), pa.array(data, pa.large_binary()))


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return write(tmp_path, frames(COUNTS), video_list(COUNTS))


def test_all_ways_to_rows_agree(uri: str) -> None:
    backend = VideoFramesBackend(uri, **WINDOWS)
    assert isinstance(backend, StorageBackend)
    assert backend.num_rows == len(EXPECTED)
    table = backend.table
    assert table.schema.equals(backend.schema)
    assert np.array_equal(table["video"].combine_chunks().to_numpy_ndarray(), clips())
    assert backend.take(np.arange(len(EXPECTED))).equals(table)
    assert backend.slice(2, 9).equals(table.slice(2, 9))
    assert pa.Table.from_batches(backend.iter_batches()).equals(table)
    picked = backend.take([-1, 3, 3, 0], columns=["start_frame", "video_id"])
    assert picked.to_pylist() == [
        {"start_frame": EXPECTED[row][1], "video_id": EXPECTED[row][0]} for row in (-1, 3, 3, 0)
    ]
    mixed = pa.Table.from_batches(backend.iter_batches(shuffle=True, seed=3))
    key = [("video_id", "ascending"), ("start_frame", "ascending")]
    plain = [name for name in table.column_names if name != "video"]
    assert mixed.select(plain).sort_by(key).equals(table.select(plain))
    assert mixed["start_frame"].to_pylist() != table["start_frame"].to_pylist()
    row = backend.get_row(-1)
    assert np.array_equal(row.pop("video"), clip(*EXPECTED[-1]))
    assert row == table.drop_columns(["video"]).to_pylist()[-1]
    assert backend.take([]).schema.equals(backend.schema)
    with pytest.raises(IndexError):
        backend.take([len(EXPECTED)])


def test_windows_are_one_shard(uri: str) -> None:
    backend = VideoFramesBackend(uri, **WINDOWS)
    assert backend.shard_rows.tolist() == [len(EXPECTED)]
    batches = backend.iter_batches([0], columns=["video_id", "start_frame"])
    found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert found == EXPECTED


def test_where_a_window_is_from(uri: str) -> None:
    backend = VideoFramesBackend(uri, **WINDOWS)
    info = backend.segment_info(-1)
    assert (info.video_id, info.key, info.path) == (3, "clip/3", "clip/3.mp4")
    assert (info.start_frame, info.frame_indices) == (18, (18, 20, 22, 24))
    assert (info.checksum, info.metadata) == ("sha256:3", {"label": 3})
    assert backend.segment_filename(-1) == "clip%2F3_000018-000024"
    with pytest.raises(IndexError):
        backend.segment_info(len(EXPECTED))


def test_options_and_version_survive_pickling(uri: str) -> None:
    import lance

    backend = VideoFramesBackend(uri, layout="TCHW", resize=(4, 4), min_video_frames=8, **WINDOWS)
    before = backend.table
    pickled = pickle.dumps(backend)
    assert len(pickled) < 4000
    lance.write_dataset(frames([9, 9]), uri, mode="overwrite")
    copy = pickle.loads(pickled)
    assert copy.table.equals(before)
    assert before.schema.field("video").type.shape == [4, 3, 4, 4]
    assert set(before["video_id"].to_pylist()) == {0, 3}


def test_videos_are_found_by_rows_without_a_list(tmp_path: Path) -> None:
    backend = VideoFramesBackend(write(tmp_path, frames(COUNTS), None), **WINDOWS)
    assert np.array_equal(backend.table["video"].combine_chunks().to_numpy_ndarray(), clips())
    assert backend.segment_filename(0) == "0_000000-000006"


def test_rows_in_any_order_are_found_without_a_list(tmp_path: Path) -> None:
    rows = frames(COUNTS)
    order = np.random.default_rng(0).permutation(rows.num_rows)
    backend = VideoFramesBackend(write(tmp_path, rows.take(order), None), **WINDOWS)
    assert np.array_equal(backend.table["video"].combine_chunks().to_numpy_ndarray(), clips())


@pytest.mark.parametrize("name", ["video_id", "frame_idx"])
def test_ids_that_are_no_numbers_are_refused(tmp_path: Path, name: str) -> None:
    rows = frames(COUNTS)
    named = rows.set_column(rows.column_names.index(name), name, rows[name].cast(pa.string()))
    uri = write(tmp_path, named, None)
    with pytest.raises(SchemaError, match=rf"frames\.lance has .*{name} \(string\)"):
        len(VideoFramesBackend(uri))


def test_rows_that_are_no_frames_are_refused(tmp_path: Path) -> None:
    import lance

    lance.write_dataset(pa.table({"video_id": [1], "bytes": [b""]}), tmp_path / "other.lance")
    with pytest.raises(SchemaError, match=r"frame_idx \(integers\) and bytes"):
        len(VideoFramesBackend(tmp_path / "other.lance"))


def test_a_window_longer_than_every_video_is_refused(uri: str) -> None:
    with pytest.raises(OptionError, match=r"spans 41 frames.*longest of 5 videos has 40"):
        len(VideoFramesBackend(uri, window_length=41))
    assert len(VideoFramesBackend(uri, window_length=40)) == 1


def test_windows_stream_through_the_loader(uri: str) -> None:
    dataset = VideoFramesDataset(uri, batch_size=6, **WINDOWS)
    batches = list(dataset)
    assert [len(batch["video"]) for batch in batches] == [6, 6, 6, 2]
    assert batches[0]["video"].dtype == torch.uint8
    assert np.array_equal(torch.cat([batch["video"] for batch in batches]).numpy(), clips())
    assert batches[0]["frame_indices"].shape == (6, 4)


def test_workers_stream_every_window_once(uri: str) -> None:
    loader, _ = VideoFramesDataset.create_dataloader(
        uri, batch_size=3, shuffle=True, split_rows=2, num_workers=2, layout="TCHW", **WINDOWS
    )
    found = sorted(
        (int(video), int(start))
        for batch in loader
        for video, start in zip(batch["video_id"], batch["start_frame"], strict=True)
    )
    assert found == EXPECTED


def test_a_state_goes_on_where_it_was_taken(uri: str) -> None:
    options = {"batch_size": 3, "shuffle": True, "split_rows": 2}
    loader, _ = VideoFramesDataset.create_dataloader(uri, **options, **WINDOWS)
    whole = [batch["start_frame"].tolist() for batch in loader]
    loader, _ = VideoFramesDataset.create_dataloader(uri, **options, **WINDOWS)
    passed = iter(loader)
    begun = [next(passed)["start_frame"].tolist() for _ in range(2)]
    state = loader.state_dict()
    loader, _ = VideoFramesDataset.create_dataloader(uri, **options, **WINDOWS)
    loader.load_state_dict(state)
    assert begun + [batch["start_frame"].tolist() for batch in loader] == whole


def test_a_state_of_other_windows_is_refused(uri: str) -> None:
    """Also where there are as many of them, as large as these."""

    def one_a_video(frame_skip: int) -> VideoFramesDataset:
        windows = {"window_length": 4, "hop_size": 100, "frame_skip": frame_skip}
        return VideoFramesDataset(uri, batch_size=1, **windows)

    dataset = one_a_video(frame_skip=1)
    next(iter(dataset))
    state = dataset.state_dict()
    one_a_video(frame_skip=1).load_state_dict(state)
    with pytest.raises(StateMismatchError):
        one_a_video(frame_skip=0).load_state_dict(state)


def test_a_broken_frame_costs_its_windows_alone(tmp_path: Path) -> None:
    uri = write(tmp_path, with_broken_frame(9), video_list(COUNTS))
    with pytest.raises(ReadError, match=r"frame 9 of video 0 \(clip/0\), row 9"):
        list(VideoFramesDataset(uri, batch_size=4, **WINDOWS))
    loader, _ = VideoFramesDataset.create_dataloader(uri, batch_size=4, on_error="skip", **WINDOWS)
    with pytest.warns(SkippedDataWarning, match="frame 9 of video 0"):
        batches = list(loader)
    found = torch.cat([batch["video"] for batch in batches]).numpy()
    left = [(v, s) for v, s in EXPECTED if not (v == 0 and 9 in range(s, s + SPAN, 2))]
    assert len(left) == len(EXPECTED) - 2
    assert np.array_equal(found, np.array([clip(*window) for window in left]))
    assert "row 9" in loader.stats()["skipped_chunks"][0]


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_of_a_process_that_has_read(uri: str, method: str) -> None:
    backend = VideoFramesBackend(uri, **WINDOWS)
    assert np.array_equal(backend.get_row(0)["video"], clip(0, 0))
    loader = DataLoader(Clips(backend), 4, num_workers=1, multiprocessing_context=method)
    assert np.array_equal(torch.cat(list(loader)).numpy(), clips())
