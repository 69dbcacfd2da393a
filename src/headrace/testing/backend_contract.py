"""The contract of backends that give rows by index."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.access import Backend, StorageBackend
from headrace.errors import SchemaError

__all__ = ["BackendContract"]

_LARGEST_PICKLE = 20_000


class BackendContract:
    """Inherit as ``TestX(BackendContract)`` and define ``write`` and ``open``.

    ``open`` returns a backend with the rows of ``expected``, in order, in more than one shard if
    possible.
    """

    rows = 1154
    pickles_data = False
    """True if rows exist in memory only, and are pickled with the backend"""

    @classmethod
    def expected(cls) -> pa.Table:
        """Rows that ``write`` is given; a column ``id`` counts them."""
        rng = np.random.default_rng(5)
        ids = np.arange(cls.rows)
        vectors = rng.random(4 * cls.rows, np.float32)
        return pa.table(
            {
                "id": ids,
                "label": pa.array((ids % 7).astype(np.int32)),
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 4),
                "name": pa.array([f"näme {i}" * (i % 4) for i in range(cls.rows)]),
                "data": pa.array([bytes([i % 256]) * (i % 97) for i in range(cls.rows)]),
            }
        )

    @classmethod
    def write(cls, directory: Path, table: pa.Table) -> None:
        """Write the rows where ``open`` finds them."""
        raise NotImplementedError

    @classmethod
    def open(cls, directory: Path) -> Backend:
        """A backend over what was written."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def table(cls) -> pa.Table:
        """Return the rows that are expected."""
        return cls.expected()

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> Backend:
        """Return a backend for all tests that only read."""
        directory = tmp_path_factory.mktemp("rows")
        cls.write(directory, table)
        return cls.open(directory)

    def test_it_is_one(self, backend: Backend, table: pa.Table) -> None:
        assert isinstance(backend, StorageBackend)
        assert backend.schema.names == table.schema.names
        assert backend.num_rows == len(backend) == table.num_rows
        assert sum(backend.shard_rows) == table.num_rows
        assert len(backend.shard_names) == len(set(backend.shard_names)) == backend.num_shards

    @pytest.mark.parametrize(
        "indices",
        [
            [0],
            [-1],
            [5, 3, 5, 5, 1153, 0, -1, -1154],
            list(range(1153, -1, -1)),
            np.arange(0, 1154, 7),
            np.array([1153, 2], np.uint16),
            np.array([3, -4], np.int8),
            range(100, 300),
        ],
        ids=["first", "last", "any", "all", "array", "unsigned", "signed", "range"],
    )
    @pytest.mark.parametrize("columns", [None, ["name", "id"]], ids=["all columns", "two"])
    def test_take(
        self, backend: Backend, table: pa.Table, indices: Any, columns: list[str] | None
    ) -> None:
        taken = backend.take(indices, columns=columns)
        whole = table if columns is None else table.select(columns)
        places = np.asarray(indices, np.int64)
        assert_same(taken, whole.take(pa.array(np.where(places < 0, places + self.rows, places))))
        assert taken.schema.equals(backend.projected(columns))

    @pytest.mark.parametrize("nothing", [[], np.array([], np.int64), np.array([]), range(0)])
    def test_nothing_is_an_empty_table(self, backend: Backend, nothing: Sequence[int]) -> None:
        taken = backend.take(nothing)
        assert taken.num_rows == 0
        assert taken.schema.equals(backend.schema)
        assert backend.slice(7, 0).schema.equals(backend.schema)
        assert backend.take(nothing, columns=["id"]).schema.names == ["id"]

    @pytest.mark.parametrize("wrong", [1154, -1155, 2**40])
    def test_out_of_range_is_an_index_error(self, backend: Backend, wrong: int) -> None:
        with pytest.raises(IndexError, match=str(wrong)):
            backend.take([0, wrong])
        with pytest.raises(IndexError):
            backend.get_row(wrong)
        with pytest.raises(IndexError):
            backend.slice(wrong, 1)

    @pytest.mark.parametrize("wrong", [[0.5], ["a"], [[0, 1]]])
    def test_indices_are_integers(self, backend: Backend, wrong: Any) -> None:
        with pytest.raises(TypeError):
            backend.take(wrong)

    @pytest.mark.parametrize("span", [(0, 1), (0, 1154), (1, 700), (1153, 1), (-10, 10), (400, 0)])
    def test_slice(self, backend: Backend, table: pa.Table, span: tuple[int, int]) -> None:
        start, length = span
        wanted = table.slice(start % self.rows, length)
        assert_same(backend.slice(start, length), wanted)
        assert_same(backend.slice(start, length, columns=["data"]), wanted.select(["data"]))

    @pytest.mark.parametrize("span", [(0, 1155), (1150, 5), (-1, 2), (3, -1)])
    def test_slices_have_to_be_there(self, backend: Backend, span: tuple[int, int]) -> None:
        with pytest.raises(IndexError):
            backend.slice(*span)

    def test_get_row(self, backend: Backend, table: pa.Table) -> None:
        some: list[Any] = [0, 77, -1, np.int64(5)]
        for index in some:
            assert backend.get_row(index) == table.slice(index % self.rows, 1).to_pylist()[0]
        assert backend.get_row(3, columns=["label"]) == {"label": 3}

    def test_batches(self, backend: Backend, table: pa.Table) -> None:
        whole = pa.Table.from_batches(backend.iter_batches(), backend.schema)
        assert_same(whole, table)
        ids = pa.Table.from_batches(backend.iter_batches(columns=["id"]))
        assert ids.schema.names == ["id"]
        last = backend.num_shards - 1
        some = pa.Table.from_batches(backend.iter_batches([last, 0]), backend.schema)
        first_of_last = self.rows - int(backend.shard_rows[-1])
        assert some["id"][0].as_py() == first_of_last
        with pytest.raises(IndexError):
            backend.iter_batches([backend.num_shards])

    def test_shuffled_batches(self, backend: Backend, table: pa.Table) -> None:
        def shuffled(seed: int | None) -> pa.Table:
            batches = backend.iter_batches(shuffle=True, seed=seed)
            return pa.Table.from_batches(batches, backend.schema)

        first = shuffled(1)
        assert_same(first, shuffled(1))
        assert first["id"].to_pylist() != table["id"].to_pylist()
        assert shuffled(2)["id"].to_pylist() != first["id"].to_pylist()
        assert_same(first.sort_by("id"), table)
        assert_same(shuffled(None).sort_by("id"), table)

    def test_the_whole_table(self, backend: Backend, table: pa.Table) -> None:
        assert_same(backend.table, table)

    def test_streams(self, backend: Backend, table: pa.Table) -> None:
        for start, length in [(0, self.rows), (100, 1), (3, 1000)]:
            schema = backend.projected(["id", "name"])
            tables = list(backend.stream(start, length, schema, 1 << 12))
            wanted = table.slice(start, length).select(["id", "name"])
            assert_same(pa.concat_tables(tables), wanted)

    @pytest.mark.parametrize("method", ["take", "slice", "get_row"])
    def test_unknown_columns(self, backend: Backend, method: str) -> None:
        first: Any = [0] if method == "take" else 0
        more = (1,) if method == "slice" else ()
        with pytest.raises(SchemaError, match="nane"):
            getattr(backend, method)(first, *more, columns=["nane"])

    def test_copies_are_small_and_read_the_same(self, backend: Backend, table: pa.Table) -> None:
        backend.take([1, 2, 3])
        sent = pickle.dumps(backend)
        assert self.pickles_data or len(sent) < _LARGEST_PICKLE
        copied = pickle.loads(sent)
        assert copied.num_rows == self.rows
        assert_same(copied.take([9, -1]), table.take(pa.array([9, self.rows - 1])))


def assert_same(got: pa.Table, wanted: pa.Table) -> None:
    """Check for the same rows in the same columns; a wider type of the same values is accepted."""
    assert got.schema.names == wanted.schema.names
    assert got.num_rows == wanted.num_rows
    assert got.to_pylist() == wanted.to_pylist()
