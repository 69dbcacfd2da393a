"""Copies on a Ray cluster of two nodes, one of which is killed in the middle."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from ray.cluster_utils import Cluster

from headrace import DataFileInfo, FileSplit, OptionError, SourceDataset, shuffle_into
from headrace.cli.entry import main
from headrace.write import copy_rows, write_tar

PATIENCE_S = 120.0
FILES, ROWS = 8, 500


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Start a cluster for this test alone: a head and a second node, each with two cores."""
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        ray.init(address=started.address)
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


@pytest.fixture
def second_node(cluster: Cluster) -> Any:
    node = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    return node


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    folder = tmp_path / "rows"
    folder.mkdir()
    for file in range(4):
        ids = range(file * ROWS, (file + 1) * ROWS)
        table = pa.table({"id": ids, "txt": [f"row {i}" for i in ids]})
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=100)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files but the marker, which names the run."""
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("_"))
    return {path.name: path.read_bytes() for path in files}


def wait_for(condition: Callable[[], Any], description: str) -> Any:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {description}")


class Waiting:
    """A source that records which node reads which file, and waits there for a file called go."""

    schema = pa.schema([("id", pa.int64())])

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = [
            DataFileInfo(f"{file}", file_size=8 * ROWS, record_count=ROWS) for file in range(FILES)
        ]

    def read(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        file = int(chunk.file.path)
        if ray.is_initialized():
            node = ray.get_runtime_context().get_node_id()
            (self.folder / f"{file}-{node}-{os.getpid()}").touch()
            while not (self.folder / "go").exists():
                time.sleep(0.02)
        ids = range(file * ROWS, (file + 1) * ROWS)
        yield pa.table({"id": ids}).select(schema.names)


def test_a_lost_node_costs_its_tasks_only(
    cluster: Cluster, second_node: Any, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    source = SourceDataset(Waiting(notes))
    lost = second_node.node_id

    def kill_when_busy() -> None:
        try:
            wait_for(lambda: any(lost in note.name for note in notes.iterdir()), "tasks there")
            cluster.remove_node(second_node, allow_graceful=False)
        finally:
            (notes / "go").touch()

    cloudpickle.register_pickle_by_value(__import__(__name__))
    killer = threading.Thread(target=kill_when_busy)
    killer.start()
    shares: list[float] = []
    report = copy_rows(
        source,
        tmp_path / "there",
        file_rows=ROWS,
        on="ray",
        progress=lambda stage, share: shares.append(share),
    )
    killer.join()
    assert report.rows == FILES * ROWS
    assert shares == sorted(shares)
    assert (len(shares) > FILES, shares[-1]) == (True, 1.0)
    began = [note.name.split("-")[:2] for note in notes.iterdir() if note.name != "go"]
    on_lost = {file for file, node in began if node == lost}
    again = {file for file, _ in began if [one for one, _ in began].count(file) > 1}
    assert on_lost
    assert again == on_lost, "tasks of the other node were repeated"
    ray_contents = contents(tmp_path / "there")
    table = pa.concat_tables(
        [pq.read_table(path) for path in sorted((tmp_path / "there").glob("*.parquet"))]
    )
    assert table["id"].to_pylist() == [*range(FILES * ROWS)]
    copy_rows(source, tmp_path / "here", file_rows=ROWS, workers=0)
    assert ray_contents == contents(tmp_path / "here")
    assert sorted(os.listdir(tmp_path)) == ["here", "notes", "there"]


def test_copies_are_the_same_as_those_of_one_machine(
    cluster: Cluster, rows: Path, tmp_path: Path
) -> None:
    lines = "".join(f"{n},{'x' * (n % 50)}\n" for n in range(3_000))
    (tmp_path / "rows.csv").write_text("id,txt\n" + lines)
    writes: dict[str, Callable[..., Any]] = {
        "tars": lambda out, **how: write_tar(rows, out, shard_bytes="200kB", **how),
        "counted": lambda out, **how: copy_rows(
            tmp_path / "rows.csv", out, file_bytes="20kB", row_group_rows=100, **how
        ),
        "shuffled": lambda out, **how: shuffle_into(
            rows, out, file_rows=300, memory_bytes="1MiB", **how
        ),
    }
    for name, write in writes.items():
        write(tmp_path / f"{name}-here", workers=0)
        write(tmp_path / f"{name}-there", on="ray")
        here = contents(tmp_path / f"{name}-here")
        assert len(here) > 3
        assert contents(tmp_path / f"{name}-there") == here


def test_commands(cluster: Cluster, rows: Path, tmp_path: Path) -> None:
    source, out = str(rows), tmp_path / "out"
    convert = ["convert", source, str(out), "--to", "arrow", "--file-rows", "500", "--on", "ray"]
    assert main(convert) == 0
    assert len(list(out.glob("*.arrow"))) == 4
    assert main(["shuffle-into", source, str(tmp_path / "mixed"), "--on", "ray"]) == 0
    assert (
        main(["convert", source, str(out), "--to", "arrow", "--on", "ray", "--workers", "0"]) == 2
    )


def test_errors_of_tasks_arrive(cluster: Cluster, tmp_path: Path) -> None:
    table = pa.table({"__key__": ["a.b", "c"], "bin": [b"", b""]})
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(OptionError, match="dot in its last part"):
        write_tar(tmp_path / "rows.parquet", tmp_path / "out", on="ray")
    with pytest.raises(OptionError, match="write them to files first"):
        write_tar(table, tmp_path / "out", on="ray")
    with pytest.raises(OptionError, match="give work_dir=: a folder that all nodes"):
        shuffle_into(tmp_path / "rows.parquet", "s3://bucket/out", on="ray")
