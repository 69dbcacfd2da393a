"""The floors: pyarrow and torch alone, without any code around them. No batch is cut."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.dataset as ds
import pyarrow.ipc as ipc
import pyarrow.json as json
import pyarrow.orc as orc
import pyarrow.parquet as pq
import torch
from data import GROUPS_PER_FILE, LIST_LENGTH, Data

from arms.registry import Mark, Pieces, arm, in_epochs
from arms.touch import count_rows

MIX = 4

# Arrow's memory is read-only, which torch does not support; nothing here writes.
warnings.filterwarnings("ignore", "The given NumPy array is not writable")


@arm("floor.parquet", reads="parquet")
def read_parquet(data: Data) -> Iterator[int]:
    for path in data.files("parquet"):
        yield pq.read_table(path).num_rows


@arm("floor.shuffled", reads="parquet")
def read_shuffled(data: Data) -> Iterator[int]:
    """Read windows of four row groups from anywhere, and permute their rows column by column."""
    files = [pq.ParquetFile(path) for path in data.files("parquet")]
    groups = [(file, group) for file in files for group in range(GROUPS_PER_FILE)]
    random.Random(42).shuffle(groups)
    for first in range(0, len(groups), MIX):
        window = [file.read_row_group(group) for file, group in groups[first : first + MIX]]
        order = torch.randperm(sum(len(table) for table in window))
        for column in window[0].column_names:
            parts = [chunk.to_numpy() for table in window for chunk in table[column].chunks]
            torch.cat([torch.from_numpy(part) for part in parts]).index_select(0, order)
        yield len(order)


@arm("floor.filter", reads="parquet")
def scan_filtered(data: Data) -> Pieces:
    first, last = data.filter_range()
    keep = (pc.field("row") >= first) & (pc.field("row") <= last)
    dataset = ds.dataset(data.folder("parquet"), format="parquet")

    def scan() -> Iterator[int]:
        for batch in dataset.scanner(columns=["f00", "row"], filter=keep).to_batches():
            yield batch.num_rows

    yield from in_epochs(scan)


@arm("floor.lists", reads="lists")
def read_lists(data: Data) -> Pieces:
    def read() -> Iterator[int]:
        for path in data.files("lists"):
            for chunk in pq.read_table(path)["vector"].chunks:
                values = torch.from_numpy(chunk.flatten().to_numpy())
                yield len(values.view(-1, LIST_LENGTH))

    yield from in_epochs(read)


@arm("floor.csv", reads="csv")
def read_csv(data: Data) -> Pieces:
    yield from in_epochs(lambda: (csv.read_csv(path).num_rows for path in data.files("csv")))


@arm("floor.jsonl", reads="jsonl")
def read_jsonl(data: Data) -> Pieces:
    yield from in_epochs(lambda: (json.read_json(path).num_rows for path in data.files("jsonl")))


@arm("floor.orc", reads="orc")
def read_orc(data: Data) -> Pieces:
    yield from in_epochs(lambda: (orc.ORCFile(path).read().num_rows for path in data.files("orc")))


@arm("floor.arrow", reads="arrow")
def read_arrow(data: Data) -> Pieces:
    yield from _read_arrow(data, "arrow")


@arm("floor.arrow-written", reads="arrow-written")
def read_arrow_as_written(data: Data) -> Pieces:
    yield from _read_arrow(data, "arrow-written")


def _read_arrow(data: Data, kind: str) -> Pieces:
    def read() -> Iterator[int]:
        for path in data.files(kind):
            with pa.OSFile(str(path)) as source:
                yield ipc.open_file(source).read_all().num_rows

    yield from in_epochs(read)


@arm("floor.views", reads="arrow")
def cut_views(data: Data) -> Pieces:
    """Cut the batches of the loader with torch alone from tensors that are already in memory."""
    tables = [ipc.open_file(str(path)).read_all().combine_chunks() for path in data.files("arrow")]
    columns = [
        {name: torch.from_numpy(table[name].to_numpy()) for name in table.column_names}
        for table in tables
    ]
    yield Mark.CLOCK_STARTS
    yield from in_epochs(lambda: count_rows(_cut(columns), columns=21))


def _cut(tables: list[dict[str, torch.Tensor]]) -> Iterator[dict[str, torch.Tensor]]:
    for table in tables:
        for views in zip(*[tensor.split(1024) for tensor in table.values()], strict=True):
            yield dict(zip(table, views, strict=True))
