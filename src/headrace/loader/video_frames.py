"""``VideoFramesDataset``: windows of video frames, streamed."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from headrace.access.video.backend import VideoFramesBackend
from headrace.loader.backend_dataset import BackendDataset
from headrace.loader.creating import LoaderOptions, create_loader
from headrace.loader.dataloader import StatefulLoader
from headrace.loader.settings import DatasetOptions, PathLike, Settings

__all__ = ["VideoFramesDataset", "VideoFramesOptions"]


class VideoFramesOptions(DatasetOptions, LoaderOptions, total=False):
    """Keywords of ``VideoFramesDataset.create_dataloader``."""

    window_length: int
    frame_skip: int
    hop_size: int
    min_video_frames: int | None
    layout: str
    resize: tuple[int, int] | None
    version: int | str | None
    batch_readahead: int


class VideoFramesDataset(BackendDataset):
    """Batches of windows of frames, of a Lance data set that has one encoded frame a row.

    ``window_length`` and the other options of windows are those of ``VideoFramesBackend``. The
    version of the data set is chosen when this is made; a state goes on in the same version and
    with the same windows only. ``on_error="skip"`` leaves out windows that have a frame which does
    not decode, and those alone.
    """

    def __init__(
        self,
        uri: PathLike,
        *,
        window_length: int = 1,
        frame_skip: int = 0,
        hop_size: int = 1,
        min_video_frames: int | None = None,
        layout: str = "THWC",
        resize: tuple[int, int] | None = None,
        version: int | str | None = None,
        batch_readahead: int = 8,
        **options: Unpack[DatasetOptions],
    ) -> None:
        settings = Settings(**options)
        backend = VideoFramesBackend(
            uri,
            window_length=window_length,
            frame_skip=frame_skip,
            hop_size=hop_size,
            min_video_frames=min_video_frames,
            batch_readahead=batch_readahead,
            storage_options=settings.storage_options,
            version=version,
            layout=layout,
            resize=resize,
        )
        backend.skips_broken = settings.skip_broken
        super().__init__(backend, "video frames", settings)

    @classmethod
    def create_dataloader(
        cls, uri: PathLike, **options: Unpack[VideoFramesOptions]
    ) -> tuple[StatefulLoader, VideoFramesDataset]:
        """A DataLoader over the windows of a data set, and the dataset behind it.

        See ``StructuredDataset.create_dataloader`` for workers and ranks.
        """
        return create_loader(partial(cls, uri), options)
