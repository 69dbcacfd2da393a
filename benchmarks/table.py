"""The rows of the published table: the arms that are compared, and the targets."""

from __future__ import annotations

from access_rows import ACCESS
from comparison import Comparison
from iceberg_rows import ICEBERG
from order_rows import ADAPTIVE, RESUMES, SHUFFLE_BUFFER, SHUFFLES
from paimon_rows import PAIMON
from remote_rows import REMOTE
from tar_rows import TAR

__all__ = ["COMPARISONS"]

_TDU_HERE = ("tdu.workers-0", "tdu.round-robin-workers-0")
_TDU_ONE = ("tdu.workers-1", "tdu.round-robin-workers-1")
_TDU_TWO = ("tdu.workers-2", "tdu.round-robin-workers-2")
_TDU = "torch-dataloader-utils"


_FORMATS = (
    ("csv", "CSV", "pyarrow.csv.read_csv"),
    ("jsonl", "JSONL", "pyarrow.json.read_json"),
    ("orc", "ORC", "pyarrow.orc.ORCFile.read"),
    ("arrow", "Arrow IPC", "pyarrow.ipc.open_file(...).read_all"),
)
_PLAN = "planning 1,000,000 row groups of 100,000 files and sending a worker its lanes"

COMPARISONS = (
    Comparison(
        "sequential-peer",
        "sequential, torch output",
        "library.parquet",
        (*_TDU_HERE, *_TDU_ONE, *_TDU_TWO),
        f"{_TDU}, its best setting",
        5,
    ),
    Comparison(
        "sequential-floor",
        "sequential, torch output, through the loader",
        "library.parquet",
        ("floor.parquet",),
        "`pyarrow.parquet.read_table` (decode alone)",
        0.8,
    ),
    Comparison(
        "shuffled",
        "row-shuffled, `split_rows=100_000, mix=4`",
        "library.shuffled",
        ("floor.shuffled",),
        "decode and one `index_select` a column, bare",
        0.8,
    ),
    Comparison(
        "automatic",
        "row-shuffled, `shuffle=True` and nothing else",
        "library.shuffled-automatic",
        ("library.shuffled",),
        "`split_rows=100_000, mix=4`",
        0.8,
    ),
    Comparison(
        "workers",
        "2 process workers, torch output",
        "library.workers-2",
        _TDU_TWO,
        f"{_TDU} with 2 workers",
        30,
    ),
    *SHUFFLES,
    ADAPTIVE,
    Comparison(
        "filter",
        "filter that keeps 1 row group in 20, 2 of 21 columns",
        "library.filter",
        ("floor.filter",),
        "`pyarrow.dataset` scanner to batches",
        0.8,
    ),
    Comparison(
        "lists",
        "fixed-size list of 64 floats, to torch",
        "library.lists",
        ("floor.lists",),
        "flatten + `from_numpy` of the decoded column",
        0.9,
    ),
    *(
        Comparison(
            key,
            f"{title}, sequential",
            f"library.{key}",
            (f"floor.{key}",),
            f"`{reader}`",
            0.8,
        )
        for key, title, reader in _FORMATS
    ),
    *REMOTE,
    *ICEBERG,
    *PAIMON,
    *ACCESS,
    *TAR,
    Comparison(
        "first-batch",
        "time to first batch, after imports",
        "library.parquet",
        _TDU_HERE,
        f"{_TDU}, its best setting",
        1,
        "first_batch_seconds",
    ),
    Comparison(
        "memory",
        "peak memory of the process",
        "library.parquet",
        _TDU_HERE,
        f"{_TDU}, its best setting",
        1,
        "peak_bytes",
    ),
    *(
        Comparison(
            f"{key}-first-epoch",
            f"{title}: the first epoch alone, with the start of the loader",
            f"library.{key}",
            (f"floor.{key}",),
            f"`{reader}`, the first time",
            None,
            "first_epoch_rate",
        )
        for key, title, reader in (("filter", "filter", "scanner"), *_FORMATS)
    ),
    Comparison(
        "sequential-peer-plain",
        "sequential, torch output",
        "library.parquet",
        ("tdu.workers-0",),
        f"{_TDU}, `num_workers=0`, its default strategy",
    ),
    Comparison(
        "decoder-peer",
        "`pyarrow.parquet.read_table` alone, nothing handed out",
        "floor.parquet",
        (*_TDU_HERE, *_TDU_ONE, *_TDU_TWO),
        f"{_TDU}, its best setting",
    ),
    Comparison(
        "arrow-written",
        "Arrow IPC, from a page cache that has the files as they were written, not as read",
        "library.arrow-written",
        ("floor.arrow-written",),
        "`pyarrow.ipc.open_file(...).read_all`",
    ),
    Comparison(
        "arrow-views",
        "the batches of Arrow IPC cut by `torch.split` out of tensors in memory, nothing read",
        "floor.views",
        ("floor.arrow",),
        "`pyarrow.ipc.open_file(...).read_all`",
    ),
    Comparison(
        "memory-growth",
        "peak memory above what imports take",
        "library.parquet",
        _TDU_HERE,
        f"{_TDU}, its best setting",
        None,
        "growth_bytes",
    ),
    Comparison("plan-time", _PLAN, "planning.whole", 5.0, "5 s", 1, "seconds"),
    Comparison(
        "plan-memory",
        f"memory of {_PLAN}",
        "planning.whole",
        500 * 2.0**20,
        "500 MiB",
        1,
        "growth_bytes",
    ),
    Comparison(
        "plan-linear",
        f"{_PLAN}, time",
        "planning.whole",
        ("planning.half",),
        "half as many files",
        2.3,
        "seconds",
    ),
    Comparison(
        "workers-plain",
        "2 process workers, no code of the user's",
        "library.workers-2",
        ("library.parquet",),
        "`num_workers=0`",
    ),
    Comparison(
        "chosen-plain",
        "`num_workers=None`, no code of the user's",
        "library.chosen",
        ("library.parquet",),
        "`num_workers=0`",
    ),
    Comparison(
        "workers-transform",
        "2 process workers, a transform of 1 ms of Python a batch",
        "library.transform-workers-2",
        ("library.transform-workers-0",),
        "`num_workers=0`",
    ),
    Comparison(
        "chosen-transform",
        "`num_workers=None`, a transform of 1 ms of Python a batch",
        "library.transform-chosen",
        ("library.transform-workers-0",),
        "`num_workers=0`",
    ),
    SHUFFLE_BUFFER,
    *RESUMES,
)
