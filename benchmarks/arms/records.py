"""ArrayRecord files: through the library, and through array_record alone, to ``bytes``.

Each of the two is imported before the clock starts, and only by its own arms: after a process has
loaded array_record, its forked workers cannot use it, and the library reads by other means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from access_data import RECORD_BYTES, make_access_data, record_count, records_path
from data import Data
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from arms.access_batches import orders
from arms.registry import Arm, Mark, Pieces, register

BATCH_RECORDS = 64
WORKERS = 2
EPOCHS = 3
_NO_THREADS = {"max_parallelism": "0"}
"""advice of the package for random reads; its data source sets the other half of it"""
_NOTHING_AHEAD = "readahead_buffer_size:0,max_parallelism:0"
"""the whole advice: record by record it is faster in order, too"""


def _check(records: Sequence[bytes]) -> None:
    """Check the first records of the file, in order."""
    noise = np.random.default_rng(0)
    if list(records) != [noise.bytes(RECORD_BYTES) for _ in records]:
        raise SystemExit("records are not those that were written")


def _in_batches(
    data: Data, read: Callable[[list[int]], Any], as_bytes: Callable[[Any], list[bytes]] = list
) -> Pieces:
    """Read in batches; ``as_bytes`` converts those that are checked, and is not timed."""
    epochs = [orders(record_count(data), BATCH_RECORDS, epoch) for epoch in range(EPOCHS)]
    batches = [[rows.tolist() for rows in epoch] for epoch in epochs]
    _check(as_bytes(read([2, 0, 1]))[1:])
    _check(as_bytes(read(list(range(BATCH_RECORDS)))))
    yield Mark.CLOCK_STARTS
    for epoch in batches:
        for rows in epoch:
            yield len(read(rows))
        yield Mark.EPOCH_END


def _one_by_one(data: Data, read: Callable[[int], bytes]) -> Pieces:
    order = np.random.default_rng(0).permutation(record_count(data)).tolist()
    _check([read(index) for index in range(BATCH_RECORDS)])
    yield Mark.CLOCK_STARTS
    for index in order:
        read(index)
        yield 1


def _batches(data: Data) -> Pieces:
    from headrace.access import ArrayRecordBackend, RowDataset

    dataset = RowDataset(ArrayRecordBackend(records_path(data, "random")))
    (column,) = dataset.backend.schema.names
    yield from _in_batches(data, lambda rows: dataset.batch(rows)[column])


def _batches_taken(data: Data) -> Pieces:
    from headrace.access import ArrayRecordBackend

    backend = ArrayRecordBackend(records_path(data, "random"))
    yield from _in_batches(data, lambda rows: _as_bytes(backend.take(rows)))


def _batches_packed(data: Data) -> Pieces:
    """Leave batches as Arrow has them, in one buffer."""
    from headrace.access import ArrayRecordBackend

    backend = ArrayRecordBackend(records_path(data, "random"))
    yield from _in_batches(data, backend.take, _as_bytes)


def _as_bytes(table: pa.Table) -> list[bytes]:
    records: list[bytes] = table.column(0).to_pylist()
    return records


def _singles(data: Data) -> Pieces:
    from headrace.access import ArrayRecordBackend

    backend = ArrayRecordBackend(records_path(data, "random"))
    (column,) = backend.schema.names
    yield from _one_by_one(data, lambda index: backend.get_row(index)[column])


def _source(options: dict[str, str] | None, data: Data) -> Any:
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    return ArrayRecordDataSource(records_path(data, "random"), reader_options=options)


def _source_batches(options: dict[str, str] | None, data: Data) -> Pieces:
    yield from _in_batches(data, _source(options, data).__getitems__)


def _source_singles(options: dict[str, str] | None, data: Data) -> Pieces:
    yield from _one_by_one(data, _source(options, data).__getitem__)


def _order(data: Data) -> Pieces:
    from headrace import ArrayRecordDataset

    loader, dataset = ArrayRecordDataset.create_dataloader(
        records_path(data, "order"),
        batch_size=BATCH_RECORDS,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    (column,) = dataset.backend.schema.names
    yield from _in_epochs(lambda: (batch[column] for batch in loader))


def _order_by_files(options: str, data: Data) -> Pieces:
    loader = DataLoader(
        WholeFiles([records_path(data, "order")], options),
        batch_size=BATCH_RECORDS,
        num_workers=WORKERS,
        persistent_workers=True,
    )
    yield from _in_epochs(lambda: loader)


def _in_epochs(epoch: Callable[[], Iterable[list[bytes]]]) -> Pieces:
    """Yield the number of records of each batch, and check the first record of an epoch."""
    for _ in range(EPOCHS):
        batches = iter(epoch())
        first = next(batches)
        _check(first[:1])
        yield len(first)
        yield from map(len, batches)
        yield Mark.EPOCH_END


class WholeFiles(IterableDataset[bytes]):
    """A dataset in which every worker reads its own files, record by record."""

    def __init__(self, paths: Sequence[str], options: str) -> None:
        self._paths = paths
        self._options = options

    def __iter__(self) -> Iterator[bytes]:
        from array_record.python.array_record_module import ArrayRecordReader

        worker = get_worker_info()
        assert worker is not None
        for path in self._paths[worker.id :: worker.num_workers]:
            reader = ArrayRecordReader(path, self._options)
            for _ in range(reader.num_records()):
                yield reader.read()


def _import_library() -> None:
    import headrace.access  # noqa: F401


def _import_package() -> None:
    import array_record.python.array_record_data_source
    import array_record.python.array_record_module  # noqa: F401


for _import, _arms in (
    (
        _import_library,
        {
            "batches": _batches,
            "batches-taken": _batches_taken,
            "batches-packed": _batches_packed,
            "singles": _singles,
            "order": _order,
        },
    ),
    (
        _import_package,
        {
            "source-batches": partial(_source_batches, None),
            "source-batches-unthreaded": partial(_source_batches, _NO_THREADS),
            "source-singles": partial(_source_singles, None),
            "source-singles-unthreaded": partial(_source_singles, _NO_THREADS),
            "order-by-files": partial(_order_by_files, ""),
            "order-by-files-unthreaded": partial(_order_by_files, _NOTHING_AHEAD),
        },
    ),
):
    for _name, _run in _arms.items():
        register(Arm(f"records.{_name}", "access-records", _run, _import, make_access_data))
