"""webshart, as it is installed."""

from __future__ import annotations

import tempfile
from typing import Any

import webshart
from data import Data
from tar_data import TARS, entries_path, entry_count, indexed_tars, sample_count

from arms.registry import Arm, Mark, Pieces, register
from arms.tar_orders import RANDOM_EPOCHS, SEQUENTIAL_EPOCHS, random_samples

GEOMETRY = {"key": "geometry-tuple", "target_pixel_area": 1024**2}
BUCKET_ROUNDS = 20


def _index(geometry: bool, workers: int, data: Data) -> Pieces:
    """Run the work of ``webshart extract-metadata``, which needs a slash after a local folder."""
    with tempfile.TemporaryDirectory() as out:
        webshart.MetadataExtractor().extract_metadata(
            f"{data.folder('tar')}/",
            f"{out}/",
            max_workers=workers,
            include_image_geometry=geometry,
        )
        yield 2 * sample_count(data)


def _loader(data: Data) -> Any:
    return webshart.TarDataLoader(webshart.discover_dataset(f"{indexed_tars(data)}/"))


def _random(data: Data) -> Pieces:
    loader = _loader(data)
    for shard in range(TARS):
        loader.load_sample(shard, 0)
    yield Mark.CLOCK_STARTS
    for _ in range(RANDOM_EPOCHS):
        for shard, sample in random_samples(data):
            entry = loader.load_sample(shard, sample)
            if not entry.data or not entry.json_data:
                raise SystemExit("a sample without its image or its JSON")
            yield 1
        yield Mark.EPOCH_END


def _sequential(data: Data) -> Pieces:
    """Read members one after the other: it iterates over files."""
    dataset = webshart.discover_dataset(f"{indexed_tars(data)}/")
    for _ in range(SEQUENTIAL_EPOCHS):
        size = 0
        for entry in webshart.TarDataLoader(dataset):
            size += len(entry.data)
        yield sample_count(data)
        yield Mark.EPOCH_END


def _buckets(data: Data) -> Pieces:
    loader = _loader(data)
    loader.list_shard_sample_aspect_buckets(list(range(TARS)), **GEOMETRY)
    yield Mark.CLOCK_STARTS
    for _ in range(BUCKET_ROUNDS):
        listed = loader.list_shard_sample_aspect_buckets(list(range(TARS)), **GEOMETRY)
        yield sum(len(bucket) for shard in listed for bucket in shard["buckets"].values())


def _load(data: Data) -> Pieces:
    dataset = webshart.discover_dataset(f"{entries_path(data, 'json').parent}/")
    yield Mark.CLOCK_STARTS
    reader = dataset.open_shard(0)
    if reader.num_files != entry_count(data):
        raise SystemExit(f"{reader.num_files} entries")
    yield reader.num_files


for _workers in (1, 2, 4):
    for _what, _geometry in (("index", False), ("index-geometry", True)):
        register(
            Arm(
                f"webshart_tar.{_what}-{_workers}",
                "tar",
                lambda data, geometry=_geometry, workers=_workers: _index(geometry, workers, data),
            )
        )
for _name, _run in (
    ("random", _random),
    ("sequential", _sequential),
    ("buckets", _buckets),
    ("load", _load),
):
    register(Arm(f"webshart_tar.{_name}", "tar-indexed", _run))
