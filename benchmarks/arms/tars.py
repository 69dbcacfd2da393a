"""Indexed tars through the library, and by system calls alone."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from typing import Any

import numpy as np
import obstore
from data import Data
from remote_store import BUCKET, endpoint
from tar_data import (
    TARS,
    entries_path,
    entry_count,
    indexed_tars,
    make_tar_data,
    sample_count,
    tar_paths,
)

from arms.registry import Arm, Mark, Pieces, register
from arms.tar_orders import (
    BATCH_SAMPLES,
    RANDOM_EPOCHS,
    SEQUENTIAL_EPOCHS,
    WORKERS,
    random_samples,
    whole_epoch,
)
from headrace import TarDataset, TarShards
from headrace.sources.tar import index_tars

GEOMETRY = {"key": "geometry-tuple", "target_pixel_area": 1024**2}
BUCKET_ROUNDS = 20
HTTP_BATCHES = 20
REQUESTS = 64
"""for the side that sends one request after the other, each of which takes equally long"""


def _index(options: dict[str, bool], data: Data) -> Pieces:
    with tempfile.TemporaryDirectory() as out:
        yield index_tars(data.folder("tar"), out, **options).members


# --- random order


def _random(data: Data) -> Pieces:
    shards = TarShards(indexed_tars(data))
    for shard in range(TARS):
        shards.load_sample(shard, 0)
    yield Mark.CLOCK_STARTS
    for _ in range(RANDOM_EPOCHS):
        for shard, number in random_samples(data):
            sample = shards.load_sample(shard, number)
            if not sample.bytes or not sample.fields["json"]:
                raise SystemExit("a sample without its image or its JSON")
            yield 1
        yield Mark.EPOCH_END


def _images(data: Data) -> tuple[TarShards, list[tuple[int, int]]]:
    """Return all images in random order, by tar and file."""
    shards = TarShards(indexed_tars(data))
    primary = [shards.collection.index(shard).primary_members.tolist() for shard in range(TARS)]
    return shards, [(shard, primary[shard][sample]) for shard, sample in random_samples(data)]


def _spans(data: Data) -> list[tuple[int, int, int]]:
    """Return the same images by tar, size and offset."""
    shards, images = _images(data)
    indexes = [shards.collection.index(shard) for shard in range(TARS)]
    return [
        (shard, int(indexes[shard].sizes[file]), int(indexes[shard].offsets[file]))
        for shard, file in images
    ]


def _payloads(data: Data) -> Pieces:
    shards, images = _images(data)
    order = np.array(images)
    batches = np.split(order, range(BATCH_SAMPLES, len(order), BATCH_SAMPLES))
    shards.payloads.read_many(*batches[0].T)
    yield Mark.CLOCK_STARTS
    for _ in range(RANDOM_EPOCHS):
        for batch in batches:
            held = shards.payloads.read_many(
                batch[:, 0], batch[:, 1]
            )  # until the next ones are read
            yield len(held)
        yield Mark.EPOCH_END


def _payload(data: Data) -> Pieces:
    shards, images = _images(data)
    opened = [shards.open_shard(shard) for shard in range(TARS)]
    opened[0].read_file(0)
    yield Mark.CLOCK_STARTS
    for _ in range(RANDOM_EPOCHS):
        for shard, file in images:
            opened[shard].read_file(file)
            yield 1
        yield Mark.EPOCH_END


def _pread(data: Data) -> Pieces:
    spans = _spans(data)
    opened = [os.open(path, os.O_RDONLY) for path in tar_paths(data)]
    yield Mark.CLOCK_STARTS
    for _ in range(RANDOM_EPOCHS):
        for shard, size, offset in spans:
            os.pread(opened[shard], size, offset)
            yield 1
        yield Mark.EPOCH_END


def _pread_batches(data: Data) -> Pieces:
    """Read as many at a time, and keep them until the next ones are read."""
    spans = _spans(data)
    opened = [os.open(path, os.O_RDONLY) for path in tar_paths(data)]
    yield Mark.CLOCK_STARTS
    for _ in range(RANDOM_EPOCHS):
        for first in range(0, len(spans), BATCH_SAMPLES):
            batch = spans[first : first + BATCH_SAMPLES]
            held = [os.pread(opened[shard], size, offset) for shard, size, offset in batch]
            yield len(held)
        yield Mark.EPOCH_END


# --- in order


def _sequential(data: Data) -> Pieces:
    shards = TarShards(indexed_tars(data))
    for _ in range(SEQUENTIAL_EPOCHS):
        count = 0
        for sample in shards:
            fields = sample.fields
            count += len(fields["jpg"]) > 0 and len(fields["json"]) > 0
        yield from whole_epoch(data, count)


def _loader(data: Data) -> Pieces:
    loader, _ = TarDataset.create_dataloader(
        indexed_tars(data),
        columns=["__key__", "jpg", "json"],
        batch_size=BATCH_SAMPLES,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    for _ in range(SEQUENTIAL_EPOCHS):
        count = 0
        for batch in loader:
            count += len(batch["jpg"])
        yield from whole_epoch(data, count)


# --- indices


def _buckets(data: Data) -> Pieces:
    shards = TarShards(indexed_tars(data))
    shards.list_shard_sample_aspect_buckets(list(range(TARS)), **GEOMETRY)
    yield Mark.CLOCK_STARTS
    for _ in range(BUCKET_ROUNDS):
        listed = shards.list_shard_sample_aspect_buckets(list(range(TARS)), **GEOMETRY)
        yield sample_count(data) if all(shard["buckets"] for shard in listed) else 0


def _buckets_looked_at(data: Data) -> Pieces:
    """Make all dicts in them, which are made when the first one is used."""
    shards = TarShards(indexed_tars(data))
    shards.list_shard_sample_aspect_buckets(list(range(TARS)), **GEOMETRY)
    yield Mark.CLOCK_STARTS
    for _ in range(BUCKET_ROUNDS):
        listed = shards.list_shard_sample_aspect_buckets(list(range(TARS)), **GEOMETRY)
        yield sum(len(bucket) for shard in listed for bucket in shard["buckets"].values())


def _buckets_as_arrays(data: Data) -> Pieces:
    shards = TarShards(indexed_tars(data))
    shards.aspect_buckets([0], **GEOMETRY)
    yield Mark.CLOCK_STARTS
    for _ in range(BUCKET_ROUNDS):
        yield len(shards.aspect_buckets(**GEOMETRY).samples)


def _load(kind: str, data: Data) -> Pieces:
    shards = TarShards(entries_path(data, kind).parent)
    yield Mark.CLOCK_STARTS
    opened = shards.open_shard(0)
    if shards.get_shard_file_count(0) != entry_count(data) or len(opened) != entry_count(data):
        raise SystemExit(f"{len(opened)} entries")
    yield len(opened)


# --- over HTTP


def _urls(data: Data, kind: str) -> list[str]:
    base = f"{endpoint()}/{BUCKET}/{data.folder(kind).parent.name}/{kind}"
    return [f"{base}/{path.name}" for path in tar_paths(data)]


def _http(data: Data) -> Pieces:
    shards = TarShards(_urls(data, "tar"), metadata=indexed_tars(data))
    samples = random_samples(data)
    shards.load_samples(samples[-BATCH_SAMPLES:])
    yield Mark.CLOCK_STARTS
    for first in range(0, HTTP_BATCHES * BATCH_SAMPLES, BATCH_SAMPLES):
        batch: list[Any] = shards.load_samples(samples[first : first + BATCH_SAMPLES])
        yield len(batch)


def _obstore(data: Data) -> Pieces:
    spans = _spans(data)
    stores = [
        obstore.store.HTTPStore.from_url(url, client_options={"allow_http": True})
        for url in _urls(data, "tar")
    ]
    obstore.get_range(stores[0], "", start=0, length=512)
    yield Mark.CLOCK_STARTS
    for shard, size, offset in spans[:REQUESTS]:
        obstore.get_range(stores[shard], "", start=offset, length=size)
        yield 1


for _name, _kind, _run in (
    ("index-headers", "tar", partial(_index, {"sidecars": False})),
    ("index-sidecars", "tar", partial(_index, {})),
    ("index-geometry", "tar", partial(_index, {"geometry": True})),
    ("random", "tar-indexed", _random),
    ("payloads", "tar-indexed", _payloads),
    ("payload", "tar-indexed", _payload),
    ("pread", "tar-indexed", _pread),
    ("pread-batches", "tar-indexed", _pread_batches),
    ("sequential", "tar-indexed", _sequential),
    ("loader", "tar-indexed", _loader),
    ("buckets", "tar-indexed", _buckets),
    ("buckets-looked-at", "tar-indexed", _buckets_looked_at),
    ("buckets-arrays", "tar-indexed", _buckets_as_arrays),
    ("load-columnar", None, partial(_load, "idx.arrow")),
    ("load-json", None, partial(_load, "json")),
    ("http-20ms", "tar-indexed", _http),
    ("obstore-20ms", "tar-indexed", _obstore),
):
    register(Arm(f"tars.{_name}", _kind, _run, beforehand=make_tar_data))
