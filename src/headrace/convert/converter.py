"""The converter: a schema and options, checked once, then applied to block after block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from headrace.convert.blocks import ArrowBlock, Block, ColumnBlock
from headrace.convert.builders import Builder, DenseBuilder, ObjectBuilder, rebuild
from headrace.convert.columns import Column, StructColumn
from headrace.convert.decoded import Kinds
from headrace.convert.fields import FieldPlanner, field_paths
from headrace.convert.memory import contiguous
from headrace.convert.nulls import Remedies
from headrace.convert.ragged import RAGGED_FORMS
from headrace.errors import OptionError, SchemaError

__all__ = ["Converter"]

_OUTPUT_FORMATS = ("torch", "numpy", "arrow", "dict")
_OF_CELLS = (DenseBuilder, ObjectBuilder)


class Converter:
    """Turns Arrow tables of one schema into blocks of batches.

    What each column becomes is decided here from schema and options alone, so that keys and
    types are the same in every batch. Holds no data: it pickles, and any thread may use it.
    """

    def __init__(
        self,
        schema: pa.Schema,
        output_format: str = "torch",
        *,
        nulls: str | Mapping[str, Any] | None = None,
        ragged: str = "list",
        kinds: Kinds | None = None,
    ) -> None:
        """Decide what each column becomes.

        Args:
            schema: The columns of the tables that will be converted.
            output_format: One of "torch", "numpy", "arrow" and "dict".
            nulls: What stands for nulls, for all columns or by column.
            ragged: The form of columns of lists of different lengths.
            kinds: What columns hold that their source has decoded, by name. It comes from the
                source and the options of the user, never from what is read.
        """
        _check_options(output_format, nulls, ragged)
        self.schema = schema
        self.output_format = output_format
        self.kinds: Kinds = dict(kinds or {})
        self._builders: tuple[Builder, ...] = ()
        if output_format in ("torch", "numpy"):
            remedies = Remedies.parse(nulls, field_paths(list(schema)))
            planner = FieldPlanner(output_format == "torch", ragged, remedies, self.kinds)
            self._builders = planner.plan(list(schema))
        elif output_format == "dict" and len(set(schema.names)) < len(schema.names):
            raise SchemaError(
                "several columns have the same name, and a dict has one place for each; rename "
                f'them, or read with output_format="arrow" (columns: {", ".join(schema.names)})'
            )
        self._names = tuple(key for builder in self._builders for key in builder.keys)

    def convert(self, table: pa.Table) -> Block:
        """A block of all rows of a table that has exactly this schema."""
        self._check_schema(table)
        if self.output_format in ("arrow", "dict"):
            if table.num_columns:  # a table of no columns would forget its rows
                table = pa.Table.from_arrays(table.columns, schema=self.schema)
            return ArrowBlock(table, self.output_format == "dict", self.kinds)
        return self.convert_columns(table.columns, table.num_rows)

    @property
    def cell_columns(self) -> frozenset[int]:
        """The columns that ``convert_columns`` also takes as cells."""
        return frozenset(
            number
            for number, builder in enumerate(self._builders)
            if isinstance(builder, _OF_CELLS) and builder.takes_cells
        )

    def convert_columns(
        self, columns: Sequence[pa.ChunkedArray | pa.Array | npt.NDArray[Any]], num_rows: int
    ) -> Block:
        """The same of all columns of the schema, for torch and numpy.

        An array of numpy has the bytes of each row, equally many or as objects, where none is null.
        """
        made = [
            column
            for builder, values in zip(self._builders, columns, strict=True)
            for column in _columns(builder, values)
        ]
        return ColumnBlock(StructColumn(self._names, tuple(made), num_rows))

    def block(self, arrays: Sequence[npt.NDArray[Any]]) -> Block:
        """The block whose ``arrays()`` these are, over the same memory."""
        num_rows = len(arrays[0]) if arrays else 0
        columns = rebuild(self._builders, iter(arrays), num_rows)
        return ColumnBlock(StructColumn(self._names, tuple(columns), num_rows))

    def _check_schema(self, table: pa.Table) -> None:
        if table.schema.equals(self.schema):
            return
        if table.schema.names != self.schema.names or table.schema.types != self.schema.types:
            raise SchemaError(
                f"a table with the columns {table.schema.names} of the types "
                f"{list(map(str, table.schema.types))} does not have the schema of the data set: "
                f"{self.schema.names}, {list(map(str, self.schema.types))}"
            )


def _columns(
    builder: Builder, values: pa.ChunkedArray | pa.Array | npt.NDArray[Any]
) -> Iterable[Column]:
    if isinstance(values, np.ndarray):
        assert isinstance(builder, _OF_CELLS)
        return builder.of_cells(values)
    if isinstance(values, pa.Array):
        return builder.build(values)
    if values.num_chunks == 1:
        return builder.build(values.chunk(0))
    parts = [builder.build(array) for array in contiguous(values)]
    if len(parts) == 1:
        return parts[0]
    return [type(same[0]).concat(same) for same in zip(*parts, strict=True)]


def _check_options(output_format: object, nulls: object, ragged: object) -> None:
    if output_format not in _OUTPUT_FORMATS:
        raise OptionError(
            f"output_format must be one of {', '.join(_OUTPUT_FORMATS)}, not {output_format!r}"
        )
    if ragged not in RAGGED_FORMS:
        raise OptionError(f"ragged must be one of {', '.join(RAGGED_FORMS)}, not {ragged!r}")
    if output_format in ("arrow", "dict") and (nulls is not None or ragged != "list"):
        raise OptionError(
            f'nulls and ragged have no effect on output_format="{output_format}", which keeps '
            "nulls and lists as they are; leave them out"
        )
    if ragged == "nested" and output_format == "numpy":
        raise OptionError(
            'ragged="nested" is a form of torch tensors; numpy has list, pad, offsets'
        )
    if ragged == "nested" and not hasattr(torch.nested, "nested_tensor_from_jagged"):
        raise OptionError(
            f'ragged="nested" needs a torch with jagged tensors, which {torch.__version__} does '
            "not have; upgrade torch, or choose list, pad or offsets"
        )
