"""Tables whose metadata asks a reader to run code, or to read foreign memory."""

from __future__ import annotations

import os
import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

OUTPUT_FORMATS = ("torch", "numpy", "dict", "arrow")
ROWS = 3
_KIND = b"headrace.decoded"
_PLACE = pa.struct([("lender", pa.int64()), ("offset", pa.int64()), ("size", pa.int64())])
_LARGE = pa.large_binary()


def _types(data: pa.DataType) -> dict[str, pa.DataType]:
    """Return the type of a column of each kind, where bytes have the type ``data``."""
    return {"pickle": data, "npy": data, "json": pa.string(), "lent": _PLACE, "held": _PLACE}


class Bomb:
    """An object whose pickle creates a folder when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.makedirs, (str(self.marker), 0o700, True)


def bomb(marker: Path) -> bytes:
    """Return a pickle that creates a folder when it is loaded. It is text, as some metadata must
    be.
    """
    return pickle.dumps(Bomb(marker), protocol=0)


def array_of_objects(marker: Path) -> bytes:
    """Return a .npy file of Python objects: a pickle that creates a folder when it is loaded."""
    stream = BytesIO()
    np.save(stream, np.array([Bomb(marker)], object), allow_pickle=True)
    return stream.getvalue()


def harmless_table(marker: Path, data: pa.DataType = _LARGE) -> pa.Table:
    """Return a table of bytes, text and numbers of the types that decoded columns are stored in."""
    types = _types(data)
    place = {"lender": 0, "offset": 0, "size": 8}
    values: dict[str, Any] = {
        "pickle": bomb(marker),
        "npy": array_of_objects(marker),
        "json": '{"a": 1}',
        "lent": place,
        "held": place,
    }
    columns = {name: pa.array([values[name]] * ROWS, types[name]) for name in values}
    columns["extension"] = pa.array([bomb(marker)] * ROWS, data)
    columns["struct"] = pa.array([values] * ROWS, pa.struct(list(types.items())))
    columns["list"] = pa.array([[bomb(marker)]] * ROWS, pa.list_(data))
    return pa.table(columns)


def hostile_table(marker: Path, data: pa.DataType = _LARGE) -> pa.Table:
    """Return the same rows with metadata that calls the columns pickles.

    The metadata is that of the schema and of all fields, nested ones included. Loading any of the
    pickles creates the folder ``marker``.
    """
    types = _types(data)
    fields = [pa.field(name, type_, metadata={_KIND: name}) for name, type_ in types.items()]
    pickled = pa.field("item", data, metadata={_KIND: b"pickle"})
    extension = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": bomb(marker),
    }
    schema = pa.schema(
        [
            *fields,
            pa.field("extension", data, metadata=extension),
            pa.field("struct", pa.struct(fields), metadata={_KIND: b"pickle"}),
            pa.field("list", pa.list_(pickled), metadata={_KIND: b"pickle"}),
        ],
        metadata={_KIND: b"pickle"},
    )
    plain = harmless_table(marker, data)
    columns = [plain.column(field.name).cast(field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def as_python(value: Any) -> Any:
    """Return a batch or a row of any output format as lists and dicts of Python values."""
    if isinstance(value, pa.RecordBatch):
        return value.to_pydict()
    if isinstance(value, dict):
        return {key: as_python(inner) for key, inner in value.items()}
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    return value
