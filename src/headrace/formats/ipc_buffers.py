"""Where in an Arrow IPC file the bytes of some columns are: a batch is buffers, in the order of
the schema, as many to a column as its type says."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.formats.ipc_footer import Batch, Blocks, file_batches
from headrace.storage import will_read

__all__ = ["announce_batches"]


def announce_batches(
    source: pa.NativeFile,
    blocks: Blocks,
    indices: Sequence[int],
    schema: pa.Schema,
    columns: Sequence[int],
) -> None:
    """Have some columns of some batches fetched; of all columns, the batches as they are."""
    messages = [blocks.batches[index] for index in indices]
    dictionaries = [_whole(block) for block in blocks.dictionaries]
    counts = [_buffers(field.type) for field in schema]
    if len(columns) == len(schema) or None in counts:
        will_read(source, [*dictionaries, *map(_whole, messages)])
        return
    ends = [sum(count or 0 for count in counts[: i + 1]) for i in range(len(counts))]
    wanted = [n for i in columns for n in range(ends[i] - (counts[i] or 0), ends[i])]
    spans = [
        (batch.body_offset + offset, batch.body_offset + offset + length)
        for batch in file_batches(source, messages)
        for offset, length in _of(batch, wanted)
    ]
    heads = [(offset, offset + length) for offset, length, _ in messages]
    will_read(source, [*dictionaries, *heads, *spans])


def _of(batch: Batch, wanted: Sequence[int]) -> list[tuple[int, int]]:
    return [batch.buffers[n] for n in wanted if n < len(batch.buffers)]


def _whole(block: tuple[int, int, int]) -> tuple[int, int]:
    return block[0], sum(block)


def _buffers(type_: pa.DataType) -> int | None:
    """How many buffers a column has; None where that is not the same for all of its batches."""
    if isinstance(type_, pa.BaseExtensionType):
        return _buffers(type_.storage_type)
    if pa.types.is_null(type_):
        return 0
    if pa.types.is_dictionary(type_) or pa.types.is_primitive(type_):
        return 2
    if pa.types.is_fixed_size_binary(type_):
        return 2
    if any(is_text(type_) for is_text in _TEXTS):
        return 3
    if pa.types.is_struct(type_) or pa.types.is_fixed_size_list(type_):
        own = 1
    elif any(is_list(type_) for is_list in _LISTS):
        own = 2
    else:
        return None
    inside = [_buffers(type_.field(i).type) for i in range(type_.num_fields)]
    return None if None in inside else own + sum(count or 0 for count in inside)


_TEXTS = (
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_large_string,
    pa.types.is_large_binary,
)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_map)
