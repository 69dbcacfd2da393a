"""Every keyword of the datasets and loaders: its type, default, documentation and check.

A keyword stands in this module once, as an entry of a ``TypedDict``. Its annotation gives the type
that editors and type checkers see, the default, a sentence of documentation, and a check (see
``Option``). The class in which it stands is the group under which it is listed. Signatures,
``help()`` and the tables of the documentation are made from these classes.

    >>> resolve(LoaderOptions, {"num_workers": 2})["prefetch_factor"]
    2
"""

import functools
import inspect
import multiprocessing
import operator
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from itertools import groupby
from multiprocessing.context import BaseContext
from typing import (
    Annotated,
    Any,
    Literal,
    TypedDict,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from headrace.errors import OptionError, UnknownOptionError, near_names
from headrace.model import SplitStrategy

__all__ = [
    "ArrayRecordOptions",
    "ArrowOptions",
    "BucketOptions",
    "CopyOptions",
    "DatasetOptions",
    "FileFormat",
    "FrameOptions",
    "IcebergOptions",
    "LanceOptions",
    "LoaderOptions",
    "LocationOptions",
    "OpenOptions",
    "Option",
    "PaimonOptions",
    "PathLike",
    "RecordCopyOptions",
    "RowCopyOptions",
    "RowSourceOptions",
    "StructuredOptions",
    "TarCopyOptions",
    "TarOptions",
    "TarWritingOptions",
    "VideoFramesOptions",
    "arguments",
    "check_buckets_together",
    "check_count",
    "check_int64_count",
    "check_together",
    "checked_keywords",
    "documented",
    "known_options",
    "parse_bytes",
    "resolve",
    "split_options",
    "whole_number",
]

PathLike = str | os.PathLike[str]
Paths = PathLike | Sequence[PathLike]
FileFormat = Literal["parquet", "orc", "csv", "json", "jsonl", "arrow"]
ByteSize = int | str
"""A number of bytes, or text such as ``"64MiB"``."""
StorageOptions = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""Options of a store, or a function that returns them fresh."""
PartitionFilter = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""Values of the wanted partitions by column; a list of such mappings for several."""
RecordDecoder = str | Callable[[bytes], Any] | tuple[Callable[..., Any], pa.Schema]
"""The name of a codec, a function from bytes to a dict, or such a function with its schema."""
MemberDecoder = bool | str | Iterable[str] | Mapping[str, str | Callable[[bytes], Any]]
"""All fields (True), some fields by name, or the decoder of each field by name."""

Check = Callable[[str, Any], object]
Function = TypeVar("Function", bound=Callable[..., Any])


# --- checks


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise an OptionError unless ``value`` is an int of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} must be an int of at least {least}, not {value!r}")


def check_int64_count(name: str, value: object) -> None:
    """Raise an OptionError unless ``value`` is an int of at least 1 that arrays of numpy hold."""
    if isinstance(value, int) and value >= 1 << 63:
        raise OptionError(f"{name} must be less than 2**63, not {value!r}")
    check_count(name, value)


def whole_number(name: str, value: object, least: int | None = None) -> int:
    """Return a value of any integer type as an int: those of numpy overflow."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):  # a bool of numpy has none
        raise OptionError(f"{name} must be an int, not {value!r}")
    number: int = operator.index(value)
    if least is not None and number < least:
        raise OptionError(f"{name} must be an int of at least {least}, not {value!r}")
    return number


_check_natural = functools.partial(check_count, least=0)


def _instance_of(kind: Any, words: str) -> Check:
    """Return a check that a value is of a type; True and False are no numbers."""

    def check(name: str, value: object) -> None:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise OptionError(f"{name} must be {words}, not {value!r}")

    return check


_check_integer = _instance_of(int, "an int")
_check_callable = _instance_of(Callable, "callable")
_check_mapping = _instance_of(Mapping, "a mapping")
_check_text = _instance_of(str, "a str")
_check_path = _instance_of(str | os.PathLike, "a path")


def _check_choice(name: str, value: object, choices: Sequence[Any]) -> None:
    """Raise an OptionError unless ``value`` is one of the choices; 0 is not False."""
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return
    words = [f'"{choice}"' if isinstance(choice, str) else repr(choice) for choice in choices]
    raise OptionError(f"{name} must be {', '.join(words[:-1])} or {words[-1]}, not {value!r}")


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise OptionError(f"{name} must be a number of seconds, not {value!r}")


def _check_rate(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise OptionError(f"{name} must be a number above 0, not {value!r}")


def _check_quality(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100:
        raise OptionError(f"{name} must be from 1 to 100, not {value!r}")


def _check_strategy(name: str, value: object) -> None:
    if not isinstance(value, SplitStrategy) or isinstance(value, type):
        raise OptionError(
            f"{name} must be an object with a method generate(files, num_workers, epoch), not "
            f"{value!r}"
        )


def _check_context(name: str, value: object) -> None:
    known = multiprocessing.get_all_start_methods()
    if not isinstance(value, BaseContext) and value not in known:
        raise OptionError(f"{name} must be one of {', '.join(known)} or a context, not {value!r}")


_UNITS = {
    "": 1,
    "b": 1,
    **{f"{p}{b}": 1000 ** (i + 1) for i, p in enumerate("kmgt") for b in ("", "b")},
    **{f"{p}ib": 1024 ** (i + 1) for i, p in enumerate("kmgt")},
}


def parse_bytes(name: str, value: ByteSize) -> int:
    """Return a number of bytes; ``name`` is the option that an error names.

    >>> parse_bytes("split_bytes", "128MiB"), parse_bytes("split_bytes", "1.5 kB")
    (134217728, 1500)
    """
    given = value
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        if match and match[2].lower() in _UNITS:
            value = int(Fraction(match[1]) * _UNITS[match[2].lower()])
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(
            f'{name} must be a positive number of bytes, or text such as "64MiB"; got {given!r}'
        )
    return value


def _check_gap(name: str, value: ByteSize) -> None:
    if value != 0 or isinstance(value, bool):
        parse_bytes(name, value)


# --- the keywords


@dataclass(frozen=True, slots=True)
class Option:
    """A keyword of an options class.

    Attributes:
        type: The type of its values.
        group: The heading under which it is listed.
        default: The value where none is given. It needs no check.
        doc: What it does, in a sentence.
        check: Raises an OptionError for a wrong value. Choices (``Literal``) and flags (``bool``)
            are checked by their type.
    """

    type: Any
    group: str
    default: Any
    doc: str
    check: Check | None = None

    @property
    def choices(self) -> tuple[Any, ...] | None:
        """The values of a flag or ``Literal``, also of one that may be None; else None."""
        if self.type is bool:
            return True, False
        if get_origin(self.type) is Literal:
            return get_args(self.type)
        parts = [part for part in get_args(self.type) if part is not type(None)]
        if len(parts) == 1 and get_origin(parts[0]) is Literal:
            return get_args(parts[0])
        return None


class _RowOptions(TypedDict, total=False):
    columns: Annotated[
        Sequence[str] | None,
        None,
        'Names of the columns to read; None reads all of them. In files "s.a" is the field a of '
        "the struct s.",
    ]
    filters: Annotated[
        ds.Expression | Sequence[Any] | None,
        None,
        "Rows to keep: a pyarrow expression, or tuples as pandas takes them.",
    ]


class ContentOptions(_RowOptions, total=False):
    """What to read"""

    on_error: Annotated[
        Literal["raise", "skip"],
        "raise",
        '"skip" leaves out a broken file or chunk, counts it and warns; denied access, changed '
        "files and faulty filters are errors all the same.",
    ]


class OrderOptions(TypedDict, total=False):
    """Order"""

    shuffle: Annotated[
        bool,
        False,
        "Permute the rows anew in every epoch: chunks as a whole, and then the rows of many chunks "
        "together.",
    ]
    shuffle_seed: Annotated[int, 42, "Seed of all permutations.", _check_integer]
    mix: Annotated[
        int | None,
        None,
        "Number of chunks whose rows are permuted together; 1 permutes chunks only; None: chosen "
        "from the files and prefetch_bytes, with shuffle=True and no sizes of chunks.",
        check_int64_count,
    ]
    interleave: Annotated[
        int, 1, "Number of files whose rows are taken in turn; not with mix.", check_count
    ]
    shuffle_buffer_rows: Annotated[
        int | None,
        None,
        "Chooses mix so that at least this many rows are permuted together.",
        check_int64_count,
    ]
    split_bytes: Annotated[
        ByteSize | None,
        None,
        "Size of a chunk, uncompressed, all columns; None: 128 MiB, shared by the chunks that are "
        "mixed.",
        parse_bytes,
    ]
    split_rows: Annotated[
        int | None, None, "Number of rows in a chunk; wins over split_bytes.", check_count
    ]
    split_strategy: Annotated[
        SplitStrategy | None,
        None,
        "Object with generate(files, num_workers, epoch) that deals the chunks.",
        _check_strategy,
    ]
    lanes: Annotated[
        int | None,
        None,
        "Number of streams that batches are dealt to. Fixed, the order is the same for every "
        "number of workers and ranks that divides it; None: one for each worker of each rank.",
        check_count,
    ]


class BatchOptions(TypedDict, total=False):
    """Batches"""

    batch_size: Annotated[
        int, 1024, "Number of rows in a batch, across row groups and files.", check_int64_count
    ]
    drop_last: Annotated[bool, False, "Leave out the short batch at the end."]
    output_format: Annotated[
        Literal["torch", "numpy", "arrow", "dict"], "torch", "What a batch is made of."
    ]
    nulls: Annotated[
        str | Mapping[str, Any] | None,
        None,
        'What nulls become: {"column": value}, or "mask"; None: NaN in floats, else an error.',
    ]
    ragged: Annotated[
        Literal["list", "pad", "offsets", "nested"],
        "list",
        "What lists of varying length become.",
    ]
    stack: Annotated[
        Mapping[str, Any] | None,
        None,
        'Columns of numbers that become one tensor of shape [rows, columns]: {"x": ["f0", "f*"]}; '
        'patterns choose, "!name" leaves out, headrace.NUMERIC is all numbers.',
        _check_mapping,
    ]
    cast: Annotated[
        Any,
        None,
        'Number type of the stacks, such as "float32" or torch.float32, or types by key.',
    ]
    row_transform: Annotated[
        Callable[[Any], Any] | None,
        None,
        "Function that is called with each row, in the worker; what it returns makes the batch.",
        _check_callable,
    ]
    transform: Annotated[
        Callable[[Any], Any] | None,
        None,
        "Function that is called with each batch, in the worker.",
        _check_callable,
    ]
    collate_fn: Annotated[
        Callable[[Any], Any] | None,
        None,
        "Function that is called with what transform returned, in the worker.",
        _check_callable,
    ]


class DeviceOptions(TypedDict, total=False):
    """Device"""

    device: Annotated[
        Any,
        None,
        'Device on which batches arrive: "cuda", "cuda:1" or a torch.device; rows are moved in '
        "blocks, and permuted and cut there; strings and bytes stay on the host.",
    ]
    device_bytes: Annotated[
        ByteSize | None,
        None,
        "Bytes of the device that reading ahead may use; with device= it takes the place of "
        "prefetch_bytes, also for the windows of shuffle=True; None: 1 GiB.",
        parse_bytes,
    ]
    device_cache: Annotated[
        bool,
        False,
        "Keep the chunks of the first epoch on the device, up to device_bytes more, and permute "
        "them there in later epochs without reading.",
    ]


class RankOptions(TypedDict, total=False):
    """Ranks"""

    rank: Annotated[
        int | None,
        None,
        "Number of this process among world_size; None: from accelerator, process_group, "
        "device_mesh, torch.distributed or the launcher.",
    ]
    world_size: Annotated[int | None, None, "Number of processes that share the data."]
    even: Annotated[
        Literal["drop", "pad", False] | None,
        None,
        "How all ranks take the same number of steps. They share the rows of the last round; "
        '"drop" then leaves out fewer rows than there are ranks, "pad" repeats as many, False '
        'lets ranks differ; None: "drop" with several ranks.',
    ]
    balance: Annotated[
        Literal["static", "adaptive"],
        "static",
        '"adaptive" lets idle workers take chunks of slower ones; the order then depends on '
        "timing, and every row still comes exactly once.",
    ]


class ReadingOptions(TypedDict, total=False):
    """Reading"""

    prefetch_bytes: Annotated[
        ByteSize | None,
        None,
        "Bytes to read ahead, for the whole process; None: 256 MiB, and with shuffle=True up to 2 "
        "GiB, at most an eighth of the memory, but not less than 256 MiB.",
        parse_bytes,
    ]


class _CredentialOptions(TypedDict, total=False):
    storage_options: Annotated[
        StorageOptions | None,
        None,
        "Credentials, endpoint and the like, as fsspec users know them, or a function that "
        "returns them fresh.",
    ]


class StorageGroup(_CredentialOptions, total=False):
    """Storage"""

    filesystem: Annotated[
        Any, None, "Filesystem of fsspec or pyarrow, or store of obstore, to use as it is."
    ]
    cache_dir: Annotated[
        PathLike | None,
        None,
        "Local folder that keeps fetched bytes, shared by the processes of the machine.",
        _check_path,
    ]
    cache_bytes: Annotated[
        ByteSize | None,
        None,
        "Largest size of cache_dir; None: half of what is free.",
        parse_bytes,
    ]
    retries: Annotated[
        int,
        10,
        "Number of times that a failed request is tried again.",
        _check_natural,
    ]
    timeout_s: Annotated[
        float,
        30.0,
        "Seconds that a server may be silent; n bytes may take n / 8192 seconds more.",
        _check_seconds,
    ]
    max_elapsed_s: Annotated[
        float,
        300.0,
        "Seconds after which a failing request is not tried again.",
        _check_seconds,
    ]
    max_gap_bytes: Annotated[
        ByteSize | None,
        None,
        "Bytes between two ranges that are fetched rather than asking twice; None: up to 1 MiB, "
        "at most a sixteenth of all.",
        _check_gap,
    ]
    max_request_bytes: Annotated[
        ByteSize, "8MiB", "Largest range to ask for in one request.", parse_bytes
    ]


class DatasetOptions(
    ContentOptions,
    OrderOptions,
    BatchOptions,
    DeviceOptions,
    RankOptions,
    ReadingOptions,
    StorageGroup,
    total=False,
):
    """Keywords of every dataset."""


class LoaderOptions(TypedDict, total=False):
    """Workers"""

    num_workers: Annotated[
        int | None,
        None,
        "0: threads of this process; n: n processes; None: processes if transform, row_transform "
        "or collate_fn are given, else threads.",
        _check_natural,
    ]
    accelerator: Annotated[Any, None, "An accelerate.Accelerator that knows the rank."]
    process_group: Annotated[Any, None, "A torch process group whose members share the data."]
    device_mesh: Annotated[Any, None, "A DeviceMesh; its data-parallel dimensions share the data."]
    pin_memory: Annotated[bool, False, "Put batches into pinned memory, as DataLoader does."]
    prefetch_factor: Annotated[
        int, 2, "Number of parcels of batches that a worker may be ahead.", check_count
    ]
    persistent_workers: Annotated[bool, False, "Keep worker processes for the next epoch."]
    multiprocessing_context: Annotated[
        str | BaseContext | None,
        None,
        "Start method of worker processes, or a context.",
        _check_context,
    ]
    timeout: Annotated[
        float,
        0,
        "Seconds to wait for a batch of a worker; 0 waits forever.",
        _check_seconds,
    ]
    worker_init_fn: Annotated[
        Callable[[int], None] | None,
        None,
        "Function that is called in each worker with its number before it reads.",
        _check_callable,
    ]


class _FileOptions(TypedDict, total=False):
    schema: Annotated[
        pa.Schema | None, None, "A pyarrow.Schema instead of the one found in the files."
    ]
    partitioning: Annotated[
        str | ds.Partitioning | None,
        None,
        '"hive", or a pyarrow Partitioning, for columns in paths.',
    ]
    format_options: Annotated[
        Mapping[str, Any] | None,
        None,
        "Read options of CSV, JSON, JSONL and Parquet.",
        _check_mapping,
    ]
    as_files: Annotated[
        bool,
        False,
        "Read the files of a table format (Delta Lake, Hudi, Iceberg, Paimon, Lance) with the "
        "rows that were deleted from it.",
    ]


class StructuredOptions(DatasetOptions, _FileOptions, total=False):
    """Files"""

    manifest: Annotated[
        PathLike | None,
        None,
        "File that dataset.save_manifest wrote; nothing is listed and no footer is fetched.",
    ]


class ArrowOptions(DatasetOptions, total=False):
    """Arrow"""

    shard_row_counts: Annotated[
        Sequence[int] | None,
        None,
        "Number of rows of each file, so that no file is opened to count them.",
    ]
    schema: Annotated[
        pa.Schema | None, None, "The schema of the files, so that none is opened for it."
    ]


class _SnapshotOptions(TypedDict, total=False):
    snapshot_id: Annotated[int | None, None, "The snapshot to read."]
    tag: Annotated[str | None, None, "Tag of the snapshot to read."]


class IcebergOptions(DatasetOptions, _SnapshotOptions, total=False):
    """Iceberg"""

    scan_filter: Annotated[
        Any, None, "A pyiceberg expression that prunes files; it does not filter rows."
    ]
    branch: Annotated[str | None, None, "Branch whose newest snapshot is read."]
    as_of: Annotated[
        datetime | str | int | None,
        None,
        "Time whose snapshot is read: a datetime, ISO text, or milliseconds.",
    ]


class PaimonOptions(DatasetOptions, _SnapshotOptions, total=False):
    """Paimon"""

    chunk_size: Annotated[
        int | None, None, "Another name of split_rows: live rows in a chunk.", check_count
    ]
    partition_filter: Annotated[
        PartitionFilter | None,
        None,
        "Values of the wanted partitions by column; a list for several.",
    ]
    blobs: Annotated[
        Literal["bytes", "descriptors"],
        "bytes",
        '"descriptors" gives where blobs lie instead of their bytes.',
    ]


class _LanceReading(TypedDict, total=False):
    version: Annotated[
        int | str | None, None, "Version to read, by number or tag; None: the newest."
    ]
    batch_readahead: Annotated[int, 8, "Number of batches that Lance reads ahead.", check_count]


class LanceOptions(DatasetOptions, _LanceReading, total=False):
    """Lance"""


class _RecordReading(TypedDict, total=False):
    reader_options: Annotated[
        str | Mapping[str, Any] | None, None, "Options of array_record's reader."
    ]
    high_memory: Annotated[bool, False, "Read each range of records at once."]


class ArrayRecordOptions(DatasetOptions, _RecordReading, total=False):
    """ArrayRecord"""

    decode: Annotated[
        RecordDecoder | None,
        None,
        "How records become rows: the name of a codec, a function from bytes to a dict or a "
        "tuple, or such a function with its schema.",
    ]


class _FrameWindows(TypedDict, total=False):
    window_length: Annotated[int, 1, "Number of frames in a window."]
    frame_skip: Annotated[int, 0, "Number of frames to leave out between two frames."]
    hop_size: Annotated[int, 1, "Number of frames between the starts of two windows."]
    min_video_frames: Annotated[int | None, None, "Leave out videos with fewer frames than this."]
    layout: Annotated[str, "THWC", "Order of the dimensions of a window."]
    resize: Annotated[tuple[int, int] | None, None, "Height and width to bring frames to."]


class VideoFramesOptions(DatasetOptions, _LanceReading, _FrameWindows, total=False):
    """Video frames"""


class _TarReading(TypedDict, total=False):
    metadata: Annotated[Paths | None, None, "Where the indexes lie, if not beside the tars."]
    fields: Annotated[
        Mapping[str, str] | None,
        None,
        'The columns, with the extensions that each may have: {"image": "jpg;png;webp"}.',
    ]
    sample_key: Annotated[
        Literal["first-dot", "last-dot"] | Callable[[str], str | None] | None,
        None,
        'Where names end in keys: "first-dot", "last-dot", or a function that returns the key; '
        "None: as the index pairs names, else at the first dot.",
    ]
    missing_fields: Annotated[
        Literal["null", "skip"],
        "null",
        'Samples that lack a field have None, or nulls=; "skip" leaves them out.',
    ]
    load_file_data: Annotated[bool, True, "False reads no payloads, only the index."]
    max_file_size: Annotated[ByteSize | None, None, "Largest member to read.", parse_bytes]
    oversized: Annotated[
        Literal["raise", "skip"],
        "raise",
        'Larger members are errors; "skip" leaves their samples out.',
    ]


class TarOptions(DatasetOptions, _TarReading, total=False):
    """Tar"""

    decode: Annotated[
        MemberDecoder | None,
        None,
        "Fields to decode: True, names, or the decoder of each field.",
    ]


class LocationOptions(TypedDict, total=False):
    """headrace.open"""

    format: Annotated[
        FileFormat | None, None, "Format of tabular files; None: by extensions or first bytes."
    ]
    catalog_config: Annotated[
        Any,
        None,
        "Properties of a pyiceberg catalog, or a catalog; the location is the name of a table.",
    ]
    catalog_options: Annotated[
        Mapping[str, Any] | None,
        None,
        "Options of a pypaimon catalog; the location is the name of a table.",
    ]


class OpenOptions(
    LocationOptions,
    StructuredOptions,
    ArrowOptions,
    IcebergOptions,
    PaimonOptions,
    LanceOptions,
    _RecordReading,
    _FrameWindows,
    _TarReading,
    total=False,
):
    """Kinds of data"""

    decode: Annotated[
        RecordDecoder | MemberDecoder | None,
        None,
        "How records, or the fields of tars, become values.",
    ]


class BucketOptions(TypedDict, total=False):
    """Buckets"""

    bucketed: Annotated[bool, False, "Make batches of images of one shape each."]
    key: Annotated[str, "aspect", "What a bucket has in common."]
    target_pixel_area: Annotated[int | None, None, "Number of pixels that images are brought to."]
    target_resolution_multiple: Annotated[int, 64, "Multiple that width and height are rounded to."]
    round_to: Annotated[int | None, 2, "Number of decimals of the aspect ratio."]


class CopyOptions(TypedDict, total=False):
    """Copies"""

    target_options: Annotated[StorageOptions | None, None, "Credentials for the target."]
    work_dir: Annotated[
        PathLike | None,
        None,
        "Folder for the journal and for what is on its way; None for a hidden one beside a local "
        "target, or the cache folder.",
    ]
    overwrite: Annotated[bool, False, "Replace what is in the target."]
    workers: Annotated[
        int | None,
        None,
        "Number of processes; 0 for this one, None to choose by the size of the source.",
        _check_natural,
    ]
    on: Annotated[
        str | None,
        None,
        '"ray" to run the work on a Ray cluster, whose nodes reach source, target and work_dir; '
        "None for processes of this machine.",
    ]
    progress: Annotated[
        Callable[[str, float], None] | None,
        None,
        "Function that is called with the name of a stage and the Share of it that is done.",
        _check_callable,
    ]


class RowSourceOptions(_RowOptions, _FileOptions, _CredentialOptions, total=False):
    """Source of rows"""

    format: Annotated[
        str | None, None, "Format of the files of the source; None to tell it from their names."
    ]


class RowCopyOptions(CopyOptions, RowSourceOptions, total=False):
    """Files of rows"""

    target_format: Annotated[
        str | None,
        None,
        '"parquet", "arrow" or "lance"; None to tell it from the end of the target.',
    ]
    row_group_rows: Annotated[int, 5_000, "Number of rows of a row group.", check_count]
    file_rows: Annotated[int | None, None, "Number of rows of a file.", check_count]
    file_bytes: Annotated[
        ByteSize | None,
        None,
        "About how many bytes of data in memory make a file; None: file_rows, or else 512 MiB.",
        parse_bytes,
    ]
    compression: Annotated[str | None, None, "Compression of the files, such as zstd or none."]


class RecordCopyOptions(CopyOptions, RowSourceOptions, total=False):
    """ArrayRecord files"""

    codec: Annotated[
        Literal["columns", "label-payload", "raw"] | None,
        None,
        'How a row is packed; None: "raw" for bytes, "label-payload" for tuples, else "columns".',
    ]
    group_size: Annotated[
        int,
        1,
        "Number of records that are compressed together: 1 to read them at random, hundreds to "
        "stream them.",
        check_count,
    ]
    compression: Annotated[
        str,
        "zstd:3",
        "zstd or brotli (both with a level: zstd:3), snappy or none.",
        _check_text,
    ]
    shard_records: Annotated[
        int | None,
        None,
        "Number of records of a file; the target is then a directory.",
        check_count,
    ]


class TarWritingOptions(TypedDict, total=False):
    """Tars"""

    shard_bytes: Annotated[
        ByteSize,
        "1GiB",
        "Largest size of a tar, unless one sample is larger; of rows, whose size is judged by the "
        "first ones, about.",
        parse_bytes,
    ]
    shard_samples: Annotated[int | None, None, "Largest number of samples of a tar.", check_count]
    pattern: Annotated[str, "shard_{:05d}.tar", "Names of tars, with their number.", _check_text]
    index: Annotated[
        Literal["arrow", "json"] | None,
        "arrow",
        "Form of the index beside each tar, or None; JSON is for webshart and other tools.",
    ]
    geometry: Annotated[bool, False, "Note sizes of pictures in the index."]
    hash: Annotated[bool, True, "Note the SHA-256 of members and tar in the index."]
    sidecars: Annotated[bool, True, "Put the content of JSON sidecars into the index."]


class TarCopyOptions(TarWritingOptions, CopyOptions, total=False):
    """Samples of tars"""

    fields: Annotated[
        Mapping[str, str] | None,
        None,
        'Field that a column of a table becomes: {"image": "jpg"}. Other columns of bytes, and '
        "those named txt, cls, npy or json, are fields by their names, and all that is left goes "
        "into the field json (where NaN is null).",
    ]
    key_column: Annotated[
        str | None,
        None,
        "Column that holds the keys; None: __key__ if there is one, else rows are numbered.",
    ]
    keys: Annotated[
        Literal["keep", "prefix", "number"],
        "keep",
        '"prefix" puts the path of a source tar before its keys, for tars whose keys repeat; '
        '"number" gives all samples new ones.',
    ]
    metadata: Annotated[PathLike | None, None, "Place of the indexes of source tars."]


class FrameOptions(CopyOptions, total=False):
    """Frames of videos"""

    codec: Annotated[Literal["webp", "jpeg"], "webp", "Form of an image."]
    quality: Annotated[int, 90, "Quality of images, from 1 to 100.", _check_quality]
    size: Annotated[
        int | None,
        None,
        "Length of the shorter side of what is stored; the other follows, so that nothing is "
        "distorted.",
        check_count,
    ]
    fps: Annotated[
        float | None,
        None,
        "Number of frames of a second that are kept, and never more than there are.",
        _check_rate,
    ]
    every: Annotated[int, 1, "One of how many frames is kept.", check_count]
    fragment_bytes: Annotated[
        ByteSize,
        "128MiB",
        "About the size of a fragment of the data set, and at least 8 MiB of a video that is "
        "larger.",
        parse_bytes,
    ]
    on_error: Annotated[
        Literal["raise", "skip"], "raise", '"skip" leaves out videos that are damaged anywhere.'
    ]


# --- what is known of them


_COMMON: tuple[type, ...] = (
    ContentOptions,
    OrderOptions,
    BatchOptions,
    DeviceOptions,
    RankOptions,
    ReadingOptions,
    StorageGroup,
    CopyOptions,
)
_SECRET = ("storage_options", "filesystem")
"""Keywords whose values may hold credentials."""


@functools.cache
def known_options(kind: type) -> Mapping[str, Option]:
    """Return the keywords of an options class by name, its own first."""
    hints = get_type_hints(kind, include_extras=True)
    known: dict[str, Option] = {}
    for group, names in _groups(kind):
        for name in names:
            hint, *described = get_args(hints[name])
            option = Option(hint, group, *described)
            if option.choices is not None:
                check = functools.partial(_check_choice, choices=option.choices)
                option = replace(option, check=check)
            known[name] = option
    return known


def _groups(kind: type) -> Iterator[tuple[str, list[str]]]:
    """Yield the headings of an options class with their keywords, its own keywords first."""
    common = {name for group in _COMMON for name in group.__annotations__}
    own = [name for name in kind.__annotations__ if name not in common]
    if own:
        yield kind.__doc__ or "", own
    for group in _COMMON:
        shared = [name for name in group.__annotations__ if name in kind.__annotations__]
        if shared:
            yield group.__doc__ or "", shared


Resolved = TypeVar("Resolved")


def resolve(kind: type[Resolved], given: Mapping[str, Any]) -> Resolved:
    """Return all options of a kind: those that were given, checked, and defaults for the others.

    Raises:
        UnknownOptionError: A keyword does not exist.
        OptionError: A value is wrong, or two of them contradict each other.
    """
    known = known_options(cast(type, kind))
    made = _Options()
    for name, option in known.items():
        made[name] = option.default
    for name, value in given.items():
        if name not in known:
            raise _unknown(name, known, kind.__name__)
        option = known[name]
        if isinstance(value, np.integer):
            value = int(value)
        is_default = value is option.default or (
            value is None and type(None) in get_args(option.type)
        )
        if option.check is not None and not is_default:
            option.check(name, value)
        made[name] = value
    check_together(made)
    return cast(Resolved, made)


class _Options(dict[str, Any]):
    """Options that keep credentials to themselves where they are shown."""

    def __repr__(self) -> str:
        return repr({name: value for name, value in self.items() if name not in _SECRET})

    def copy(self) -> "_Options":
        return _Options(self)


def split_options(given: Mapping[str, Any], kind: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keywords that belong to ``kind``, and all others."""
    known = known_options(kind)
    mine, others = dict[str, Any](), dict[str, Any]()
    for name, value in given.items():
        (mine if name in known else others)[name] = value
    return mine, others


def arguments(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of some options that a function or class takes as keywords, by their names."""
    taken, chosen = inspect.signature(function).parameters, dict[str, Any]()
    for name, value in options.items():
        if name in taken and taken[name].kind is inspect.Parameter.KEYWORD_ONLY:
            chosen[name] = value
    return chosen


def _unknown(name: str, known: Iterable[str], place: str) -> UnknownOptionError:
    hint = near_names(name, known, f"help({place}) lists all of them")
    return UnknownOptionError(f"{place} has no keyword {name}; {hint}")


def check_together(options: Mapping[str, Any]) -> None:
    """Raise an OptionError if two options contradict each other.

    All such rules stand here. Public classes with keywords of their own, such as backends, call it
    with those that they were given; what is missing counts as not given.
    """

    given = [name for name, value in options.items() if value is not None]
    _check_batches_together(options)
    _check_order_together(options)
    if options.get("cache_bytes") is not None and options.get("cache_dir") is None:
        raise OptionError("cache_bytes has no effect without cache_dir")
    if options.get("filesystem") is not None and options.get("storage_options"):
        raise OptionError(
            "storage_options have no effect beside filesystem, which is used as it is"
        )
    if options.get("num_workers") == 0 and options.get("persistent_workers"):
        raise OptionError(
            "persistent_workers=True has no effect beside num_workers=0: there are no workers"
        )
    if {"process_group", "device_mesh"} <= {*given}:
        raise OptionError("process_group and device_mesh both choose the ranks: give one")
    snapshots = [name for name in given if name in ("snapshot_id", "tag", "branch", "as_of")]
    if len(snapshots) > 1:
        raise OptionError(f"{' and '.join(snapshots)} exclude each other: give one of them")
    if {"chunk_size", "split_rows"} <= {*given}:
        raise OptionError("chunk_size is another name of split_rows: give one of them")
    if options.get("decode") and options.get("load_file_data") is False:
        raise OptionError(
            "decode has no effect with load_file_data=False, which reads no payloads; leave one of "
            "them out"
        )


def _check_batches_together(options: Mapping[str, Any]) -> None:
    """Raise an OptionError if options say different things of what a batch is made of."""
    get = options.get
    form, ragged = get("output_format") or "torch", get("ragged") or "list"
    if form in ("arrow", "dict"):
        if get("nulls") is not None or ragged != "list":
            raise OptionError(
                f'nulls and ragged have no effect on output_format="{form}", which keeps nulls and '
                "lists as they are; leave them out"
            )
        if get("stack") is not None or get("cast") is not None:
            raise OptionError(
                f'stack and cast make tensors or arrays, which output_format="{form}" has none of; '
                "leave them out"
            )
    if ragged == "nested" and form == "numpy":
        raise OptionError(
            'ragged="nested" is a form of torch tensors; numpy has list, pad, offsets'
        )
    if get("device") is not None and form != "torch":
        raise OptionError(
            f'device={get("device")!r} is for tensors, and output_format="{form}" makes others; '
            "leave one out"
        )
    for name in ("device_cache", "device_bytes"):
        if get(name) and get("device") is None:
            raise OptionError(
                f'{name}={get(name)!r} has no effect without a device; choose one: device="cuda"'
            )
    if get("row_transform") is not None and ragged in ("offsets", "nested"):
        raise OptionError(
            f'row_transform needs rows, which ragged="{ragged}" has none of; choose "list" or "pad"'
        )


def _check_order_together(options: Mapping[str, Any]) -> None:
    """Raise an OptionError if options say different things of the order of rows."""
    get = options.get
    mix, interleave = get("mix") or 1, get("interleave") or 1
    if mix > 1 and interleave > 1:
        raise OptionError(
            f"mix={mix} and interleave={interleave} exclude each other: the rows of "
            "a window are either permuted or taken in turn from its files"
        )
    buffer_rows = get("shuffle_buffer_rows")
    if buffer_rows is not None:
        for name in ("mix", "interleave"):
            if (get(name) or 1) > 1:
                raise OptionError(
                    f"shuffle_buffer_rows={buffer_rows} chooses mix, and {name} is given: leave "
                    "one out"
                )
    for name in ("mix", "shuffle_buffer_rows"):
        if (get(name) or 1) > 1 and not get("shuffle") and get("split_strategy") is None:
            raise OptionError(
                f"{name}={get(name)} permutes rows, and shuffle is False: give shuffle=True, or "
                f"leave {name} out"
            )
    if get("split_strategy") is not None:
        for name in ("shuffle", "split_bytes", "split_rows"):
            if get(name):
                raise OptionError(
                    f"{name}={get(name)!r} has no effect beside split_strategy, whose splits are "
                    "the order; give it to the strategy instead"
                )


def check_buckets_together(of_buckets: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Raise an OptionError if keywords of buckets contradict other keywords that were given."""
    if of_buckets.get("bucketed"):
        for name in others:
            if name in _OF_STREAMS and others[name] is not None:
                raise OptionError(
                    f"{name} has no effect beside bucketed=True, whose batches are made of samples "
                    "of one shape from all of the data"
                )
        return
    for name in of_buckets:
        if name != "bucketed":
            raise OptionError(f"{name} has no effect without bucketed=True")


_OF_STREAMS = {
    *OrderOptions.__annotations__.keys() - {"shuffle", "shuffle_seed"},
    *DeviceOptions.__annotations__,
    *("filters", "even", "balance", "stack", "cast"),
}
"""Keywords that decide the order or the form of streams; those of buckets are fixed."""


# --- signatures and documentation


_MODULES = re.compile(r"\b(?:typing|collections\.abc|os|datetime|\w[\w.]*)\.(?=[A-Z])")
"""The modules of types, which are left out where a type is shown."""


def documented(*kinds: type, checks: bool = True) -> Callable[[Function], Function]:
    """Give a function, method or class that takes ``**options`` their signature and help.

    Type checkers see the keywords by ``Unpack``; this is for ``help()``, ``inspect.signature`` and
    notebooks. A call with a keyword that is not known is an UnknownOptionError, which names similar
    ones, or of a method the call of the dataset that the keyword belongs to.

    Args:
        kinds: The options classes.
        checks: False for a function that passes its keywords on to one that checks them.
    """

    def document(public: Function) -> Function:
        is_class = isinstance(public, type)
        function: Any = public.__init__ if is_class else public
        plain = inspect.signature(function)
        own = [one for one in plain.parameters.values() if one.kind is not one.VAR_KEYWORD]
        keywords = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type
            )
            for kind in kinds
            for name, option in known_options(kind).items()
            if name not in plain.parameters
        ]
        signature = plain.replace(parameters=[*own, *keywords])

        is_method = not is_class and not {"self", "cls"}.isdisjoint(plain.parameters)

        @functools.wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            for name in given:
                if checks and name not in signature.parameters:
                    if not is_method:
                        raise _unknown(name, signature.parameters, public.__name__)
                    dataset = args[0] if isinstance(args[0], type) else type(args[0])
                    raise _misplaced(name, function.__name__, dataset, signature)
            return function(*args, **given)

        text = inspect.cleandoc(public.__doc__ or "")
        checked.__signature__ = signature  # type: ignore[attr-defined]
        if is_class:
            public.__init__ = checked  # type: ignore[method-assign]
        result: Any = public if is_class else checked
        result.__doc__ = "\n\n".join([text, *(_listing(kind) for kind in kinds)])
        return cast(Function, result)

    return document


checked_keywords = documented()
"""Make a call of a function or class with an unknown keyword an UnknownOptionError.

Python's own error suggests no similar names, and is no OptionError.
"""


def _misplaced(
    name: str, method: str, dataset: Any, signature: inspect.Signature
) -> UnknownOptionError:
    """Return the error for an unknown keyword of a method of a dataset."""
    kind = dataset.__name__
    calls = {
        f"{kind}.create_dataloader and to dataset.loader": "loader",
        kind: "__init__",
        f"{kind}.create_dataloader": "create_dataloader",
    }
    place = {"__init__": kind, "loader": "dataset.loader"}.get(method, f"{kind}.{method}")
    names = [*signature.parameters]
    for call, other in calls.items():
        others = inspect.signature(getattr(dataset, other, dict)).parameters
        if name in others:
            return UnknownOptionError(f"{place} has no keyword {name}: it belongs to {call}")
        names += others
    return _unknown(name, names, place)


def _listing(kind: type) -> str:
    """Return the keywords of a kind as the section of a docstring."""
    lines = []
    for heading, options in groupby(known_options(kind).items(), lambda item: item[1].group):
        lines.append(f"{heading}:")
        for name, option in options:
            shown = option.type.__name__ if isinstance(option.type, type) else str(option.type)
            if option.choices is not None and option.type is not bool:
                shown = " | ".join(map(repr, option.choices))
            text = f"{name} ({_MODULES.sub('', shown)}, default {option.default!r}): {option.doc}"
            lines += textwrap.wrap(text, 88, initial_indent="    ", subsequent_indent="        ")
    return "\n".join(lines)
