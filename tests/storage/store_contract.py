"""What every store has to do, whatever protocol leads to it: one class, inherited by each."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from headrace import StructuredDataset
from headrace.errors import NothingFoundError, ReadError

FORMATS = ("parquet", "orc", "csv", "jsonl", "arrow")
ROWS = 40
ODD_NAMES = (
    "with space.parquet",
    "ünïcödé-データ.parquet",
    "k=v.parquet",
    "100%.parquet",
    "pct%20.parquet",
    "hash#tag.parquet",
    "a+b.parquet",
    "what?.parquet",
    "sq[0].parquet",
    "star*.parquet",
    "tilde~.parquet",
    "quote'.parquet",
    "and&.parquet",
    "at@.parquet",
    "colon:.parquet",
    "semi;comma,.parquet",
    "(round){curly}.parquet",
)


@dataclass(frozen=True)
class Place:
    """A folder in some store: where it is, how it is written to, how it is read."""

    root: str
    put: Callable[[str, bytes], Any]
    """writes a file, by its path below the folder"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """keywords of ``create_dataloader``"""
    encoded: bool = False
    """whether paths are URLs in which odd characters are escaped"""

    def at(self, path: str) -> str:
        return f"{self.root}/{quote(path) if self.encoded else path}"


def table_of(first: int = 0, rows: int = ROWS) -> pa.Table:
    ids = range(first, first + rows)
    return pa.table(
        {"id": list(ids), "x": [i / 4 for i in ids], "name": [f"row {i} ñ" for i in ids]}
    )


def file_of(format: str = "parquet", first: int = 0, rows: int = ROWS) -> bytes:
    """The bytes of a file in one of the formats, in two parts where it has any."""
    table, sink = table_of(first, rows), io.BytesIO()
    if format == "parquet":
        pq.write_table(table, sink, row_group_size=rows // 2)
    elif format == "orc":
        pa.orc.write_table(table, sink)
    elif format == "csv":
        pa.csv.write_csv(table, sink)
    elif format == "jsonl":
        lines = (json.dumps(row, ensure_ascii=False) for row in table.to_pylist())
        sink.write("".join(f"{line}\n" for line in lines).encode())
    else:
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows // 2)
    return sink.getvalue()


def read(path: str | Sequence[str], format: str = "parquet", **options: Any) -> dict[str, list]:
    """All rows, column by column, through a loader."""
    options = {"num_workers": 0, "retries": 2, **options}
    loader, _ = StructuredDataset.create_dataloader(path, format, batch_size=16, **options)
    found: dict[str, list] = {}
    for batch in loader:
        for name, values in batch.items():
            found.setdefault(name, []).extend(
                values.tolist() if hasattr(values, "tolist") else values
            )
    return found


def ids(path: str | Sequence[str], format: str = "parquet", **options: Any) -> list[int]:
    return read(path, format, **options).get("id", [])


def chain(error: BaseException) -> list[BaseException]:
    """An error with everything that led to it, shown or not."""
    found: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is not None and one not in found:
            found.append(one)
            pending += [one.__cause__, one.__context__]
    return found


class StoreContract:
    """Inherit it, with a fixture ``place``; the folder need not be empty."""

    odd_names = ODD_NAMES

    @pytest.mark.parametrize("format", ["parquet", "csv"])  # by places, and from front to end
    def test_a_file_of_a_format(self, place: Place, format: str) -> None:
        place.put(f"formats/a.{format}", file_of(format))
        path = place.at(f"formats/a.{format}")
        assert read(path, format, **place.options) == table_of().to_pydict()
        two = read(path, format, columns=["name", "id"], **place.options)
        assert list(two) == ["name", "id"]
        assert two["id"] == list(range(ROWS))
        keep = (ds.field("id") >= 30) & (ds.field("x") < 9.0)
        kept = read(path, format, columns=["name"], filters=keep, **place.options)
        assert kept == {"name": [f"row {i} ñ" for i in range(30, 36)]}

    def test_one_file_a_directory_and_globs(self, place: Place) -> None:
        for index, name in enumerate(("part-0", "part-1", "part-2", "deep/k=1/part-3")):
            place.put(f"many/{name}.parquet", file_of(first=100 * index))
        place.put("many/_SUCCESS", b"")
        place.put("many/.hidden.parquet", b"no parquet")

        def hundreds(*paths: str) -> list[int]:
            path = [place.at("many") + end for end in paths]
            got = ids(path[0] if len(path) == 1 else path, columns=["id"], **place.options)
            assert len(got) == ROWS * len({value // 100 for value in got})
            return sorted({value // 100 for value in got})

        everything = [0, 1, 2, 3]
        assert hundreds("") == everything
        assert hundreds("/") == everything
        assert hundreds("/part-1.parquet") == [1]
        assert hundreds("/*.parquet") == [0, 1, 2]
        assert hundreds("/part-[01].parquet") == [0, 1]
        assert hundreds("/part-?.parquet") == [0, 1, 2]
        assert hundreds("/**/*.parquet") == everything
        assert hundreds("/d*/**/*.parquet") == [3]
        assert hundreds("/part-2.parquet", "/deep") == [2, 3]

    def test_hive_partitions_with_odd_values(self, place: Place) -> None:
        for index, value in enumerate(("plain", "with space", "ü")):
            place.put(f"hive/key={value}/a.parquet", file_of(first=100 * index))
        keep = ds.field("key") == "with space"
        got = read(place.at("hive"), partitioning="hive", filters=keep, **place.options)
        assert got["id"] == list(range(100, 100 + ROWS))
        assert set(got["key"]) == {"with space"}

    def test_odd_names(self, place: Place) -> None:
        for index, name in enumerate(self.odd_names):
            place.put(f"odd/{name}", file_of(first=100 * index, rows=4))
        everything = [100 * index + i for index in range(len(self.odd_names)) for i in range(4)]
        assert sorted(ids(place.at("odd"), **place.options)) == everything
        for index, name in enumerate(self.odd_names):
            got = ids(place.at(f"odd/{name}"), **place.options)
            assert got == [100 * index + i for i in range(4)], name

    def test_odd_folders(self, place: Place) -> None:
        for index, name in enumerate(("a b/c", "ü=1/%41", "p+q/#r")):
            place.put(f"folders/{name}/x.parquet", file_of(first=100 * index))
            got = ids(place.at(f"folders/{name}"), **place.options)
            assert got == list(range(100 * index, 100 * index + ROWS))
        assert len(ids(place.at("folders"), **place.options)) == 3 * ROWS

    def test_what_is_missing(self, place: Place) -> None:
        place.put("something/a.parquet", file_of())
        for path in ("none/a.parquet", "none", "none/", "none/*.parquet", "some*/none*"):
            with pytest.raises(NothingFoundError, match="none"):
                read(place.at("") + path, **place.options)

    def test_nothing_but_hidden_files(self, place: Place) -> None:
        place.put("hidden/_SUCCESS", b"")
        with pytest.raises(NothingFoundError, match="hidden"):
            read(place.at("hidden"), **place.options)

    def test_empty_files(self, place: Place) -> None:
        for format in FORMATS:
            place.put(f"empty/{format}/zero.{format}", b"")
        for format in ("parquet", "orc", "arrow"):
            with pytest.raises(ReadError, match=f"zero.{format}") as caught:
                read(place.at(f"empty/{format}"), format, **place.options)
            assert len(str(caught.value)) < 400
        for format in ("csv", "jsonl"):
            assert read(place.at(f"empty/{format}"), format, **place.options) == {}

    def test_a_file_that_is_cut_short(self, place: Place) -> None:
        place.put("cut/short.parquet", file_of()[:-20])
        with pytest.raises(ReadError, match=r"short\.parquet"):
            read(place.at("cut"), **place.options)
