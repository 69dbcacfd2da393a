"""The contract of formats, as a test class that their own tests inherit."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import FileChangedError, ReadError
from headrace.model import ByteRange, DataFileInfo, FileSplit, RowRange
from headrace.sources.files.protocol import FileFacts, Format
from headrace.storage import Store, store_for

__all__ = ["FormatContract", "assert_same_rows"]

_BLOCK_BYTES = 1 << 20
_ROWS = 200
_CUTS = st.lists(st.floats(0, 1, exclude_max=True), max_size=5)

over_cuts = settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)


class FormatContract:
    """Inherit as ``TestX(FormatContract)``, define ``format`` and ``write``, set the flags."""

    typed = True
    """the file stores the types of its columns, also when it has no rows"""
    counted = True
    """``inspect`` knows the number of rows and the row groups; else chunks are byte ranges"""
    truncation_shows = True
    """a truncated file cannot be mistaken for a complete one"""
    prunes = False
    """``inspect`` leaves out row groups whose statistics exclude a filter"""
    rows_per_group: int | None = 64
    """rows of the groups that ``write`` makes; None if it cannot choose them"""

    def format(self) -> Format:
        """The format under test."""
        raise NotImplementedError

    def write(self, path: Path, table: pa.Table) -> None:
        """Write ``table`` with another library, in groups of ``rows_per_group``."""
        raise NotImplementedError

    def sample(self, rows: int = _ROWS) -> pa.Table:
        """Return a table with nulls and awkward names that this format can hold."""
        id_of = range(rows)
        columns = {
            "id": pa.array(id_of, pa.int64()),
            "x": pa.array([None if i % 7 == 3 else i / 4 + 0.125 for i in id_of], pa.float64()),
            # Beyond 2**53, where a way through floats would lose the last digit.
            "count": pa.array([None if i % 5 == 4 else 2**53 + 1 + i for i in id_of], pa.int64()),
            "flag": pa.array([i % 3 == 0 for i in id_of], pa.bool_()),
            "Größe.in cm": pa.array([i + 0.5 for i in id_of], pa.float64()),
            "名前": pa.array([None if i % 11 == 5 else f"näme-{i}" for i in id_of], pa.string()),
        }
        return pa.table(columns)

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """Return the path of the test's file: a name with blanks and non-ASCII characters."""
        directory = tmp_path / "Übung 数据"
        directory.mkdir()
        return directory / f"päth with blank{self.format().extensions[0]}"

    def test_inspect_tells_what_is_in_the_file(self, path: Path) -> None:
        table, store, file = self.written(path)
        facts = self.inspect(store, file)
        assert facts.schema.names == table.schema.names
        assert facts.schema.metadata is None
        if self.typed:
            assert facts.schema.equals(table.schema)
        assert facts.record_count == (table.num_rows if self.counted else None)
        assert facts.row_groups is None or self.counted

    def test_row_groups_follow_each_other_and_hold_all_rows(self, path: Path) -> None:
        if not self.counted:
            pytest.skip("the format has no row groups")
        _, store, file = self.written(path)
        groups = self.inspect(store, file).row_groups
        assert groups is not None
        assert groups.start.tolist() == (np.cumsum(groups.rows) - groups.rows).tolist()
        assert groups.rows.sum() == _ROWS
        assert (groups.size_bytes > 0).all()
        if self.rows_per_group is not None:
            assert groups.start.tolist() == list(range(0, _ROWS, self.rows_per_group))

    @pytest.mark.parametrize("rows", [0, 1, 2, _ROWS])
    def test_whole_file_comes_back_as_written(self, path: Path, rows: int) -> None:
        table, store, file = self.written(path, rows)
        got = self.read_all(store, FileSplit(file), table.schema)
        assert_same_rows(got, table)
        if self.typed:
            assert got.schema.equals(table.schema)
        if self.counted:
            assert self.inspect(store, file).record_count == rows

    def test_column_of_nulls(self, path: Path) -> None:
        table = pa.table({"id": pa.array([1, 2, 3]), "x": pa.nulls(3, pa.float64())})
        self.write(path, table)
        store, file = self.discover(path)
        assert_same_rows(self.read_all(store, FileSplit(file), table.schema), table)

    @over_cuts
    @given(cuts=_CUTS)
    def test_any_partition_gives_every_row_once_in_order(
        self, path: Path, cuts: list[float]
    ) -> None:
        table = self.sample()
        if not path.exists():
            self.write(path, table)
        store, file = self.discover(path)
        chunks = self.read_chunks(store, file, table.schema, cuts)
        assert_same_rows(pa.concat_tables(chunks), table)

    def test_only_wanted_columns_come(self, path: Path) -> None:
        table, store, file = self.written(path)
        wanted = table.select(["Größe.in cm", "id"])
        tables = list(self.tables(store, FileSplit(file), wanted.schema))
        assert {name for part in tables for name in part.column_names} == {"Größe.in cm", "id"}
        assert_same_rows(concatenated(tables, wanted.schema), wanted)

    def test_a_column_that_the_file_lacks_is_absent(self, path: Path) -> None:
        table, store, file = self.written(path)
        wanted = pa.schema([("Größe", pa.float64()), table.schema.field("id")])
        for part in self.tables(store, FileSplit(file), wanted):
            assert part.column_names == ["id"]
        assert_same_rows(self.read_all(store, FileSplit(file), wanted), table.select(["id"]))

    def test_rows_are_counted_when_no_wanted_column_is_in_the_file(self, path: Path) -> None:
        _, store, file = self.written(path)
        tables = list(self.tables(store, FileSplit(file), pa.schema([("elsewhere", pa.int8())])))
        assert sum(part.num_rows for part in tables) == _ROWS
        assert all(part.num_columns == 0 for part in tables)

    def test_small_blocks_are_several_tables(self, path: Path) -> None:
        table, store, file = self.written(path)
        tables = list(self.format().read(store, FileSplit(file), table.schema, block_bytes=512))
        assert len(tables) > 1
        assert_same_rows(concatenated(tables, table.schema), table)

    def test_a_filter_loses_no_matching_row(self, path: Path) -> None:
        table, store, file = self.written(path)
        keep = (ds.field("id") >= 150) & (ds.field("id") < 160)
        facts = self.format().inspect(store, file, keep)
        assert facts.record_count == (_ROWS if self.counted else None)
        assert (facts.matching is not None) == self.prunes
        if facts.matching is None:
            return
        assert 0 < facts.matching.rows.sum() < _ROWS
        planned = facts.added_to(file)
        groups = zip(facts.matching.start, facts.matching.rows, strict=True)
        ranges = [RowRange(int(start), int(rows)) for start, rows in groups]
        chunks = [self.read_all(store, FileSplit(planned, r), table.schema) for r in ranges]
        assert_same_rows(pa.concat_tables(chunks).filter(keep), table.filter(keep))

    @pytest.mark.parametrize("keep", [ds.field("elsewhere") > 1, ds.field("id") == "word"])
    def test_a_filter_that_does_not_fit_the_file_rules_nothing_out(
        self, path: Path, keep: ds.Expression
    ) -> None:
        _, store, file = self.written(path)
        facts = self.format().inspect(store, file, keep)
        assert facts.row_groups == self.inspect(store, file).row_groups
        assert facts.matching in (None, facts.row_groups)

    @pytest.mark.parametrize("kept", [0.0, 0.01, 0.3, 0.7, 0.98, "all but a byte"])
    def test_a_truncated_file_is_an_error_that_names_it(
        self, path: Path, kept: float | str
    ) -> None:
        if not self.truncation_shows:
            pytest.skip("a shorter file is a valid file")
        table = self.sample()
        self.write(path, table)
        whole = path.read_bytes()
        stop = int(len(whole) * kept) if isinstance(kept, float) else len(whole) - 1
        path.write_bytes(whole[:stop])
        store, file = self.discover(path)
        with pytest.raises(ReadError, match="päth with blank"):
            self.read_all(store, FileSplit(self.planned(store, file)), table.schema)

    def test_a_file_that_changed_is_not_read(self, path: Path) -> None:
        table, store, file = self.written(path)
        chunk = FileSplit(self.planned(store, file))
        self.write(path, self.sample(rows=_ROWS + 50))
        with pytest.raises(FileChangedError, match="päth with blank"):
            self.read_all(store, chunk, table.schema)
        with pytest.raises(FileChangedError, match="päth with blank"):
            self.inspect(store, file)

    def test_a_file_that_vanished_is_an_error(self, path: Path) -> None:
        table, store, file = self.written(path)
        chunk = FileSplit(self.planned(store, file))
        path.unlink()
        with pytest.raises(FileChangedError, match="päth with blank"):
            self.read_all(store, chunk, table.schema)

    def test_a_pickled_format_reads_in_two_threads_at_once(self, path: Path) -> None:
        table, store, file = self.written(path)
        shared: Format = pickle.loads(pickle.dumps(self.format()))

        def read_once(_: int) -> pa.Table:
            tables = list(shared.read(store, FileSplit(file), table.schema, 2048))
            return concatenated(tables, table.schema)

        with ThreadPoolExecutor(2) as threads:
            for rows in threads.map(read_once, range(16)):
                assert_same_rows(rows, table)

    def test_reads_through_fsspec(self, path: Path) -> None:
        table = self.sample()
        self.write(path, table)
        url = f"memory://{uuid.uuid4().hex}/{path.name}"
        memory = fsspec.filesystem("memory")
        memory.pipe_file(url, path.read_bytes())
        store, file = self.discover(url)
        assert self.inspect(store, file).schema.names == table.schema.names
        chunks = self.read_chunks(store, file, table.schema, [0.37, 0.8])
        assert_same_rows(pa.concat_tables(chunks), table)
        memory.rm_file(url)

    def written(self, path: Path, rows: int = _ROWS) -> tuple[pa.Table, Store, DataFileInfo]:
        """Write a sample, and return it with its file."""
        table = self.sample(rows)
        self.write(path, table)
        return table, *self.discover(path)

    def discover(self, path: Path | str) -> tuple[Store, DataFileInfo]:
        """The file as a listing shows it, before it was inspected."""
        store = store_for(str(path))
        status = store.status(str(path))
        assert status is not None
        return store, status

    def inspect(self, store: Store, file: DataFileInfo) -> FileFacts:
        """The facts of ``file`` without a filter."""
        return self.format().inspect(store, file)

    def planned(self, store: Store, file: DataFileInfo) -> DataFileInfo:
        """The file with all that inspecting it tells, as a plan carries it."""
        return self.inspect(store, file).added_to(file)

    def tables(self, store: Store, chunk: FileSplit, schema: pa.Schema) -> Iterator[pa.Table]:
        """Return the tables of ``read`` for a chunk; inspect its file first if necessary."""
        if chunk.row_range is None and chunk.byte_range is None:
            chunk = FileSplit(self.planned(store, chunk.file))
        return self.format().read(store, chunk, schema, _BLOCK_BYTES)

    def read_all(self, store: Store, chunk: FileSplit, schema: pa.Schema) -> pa.Table:
        """All rows of a chunk in one table."""
        return concatenated(self.tables(store, chunk, schema), schema)

    def read_chunks(
        self, store: Store, file: DataFileInfo, schema: pa.Schema, cuts: Sequence[float]
    ) -> list[pa.Table]:
        """Cut the file at these fractions of its rows or bytes, and read piece by piece."""
        chunks = cut_file(self.planned(store, file), cuts)
        return [self.read_all(store, chunk, schema) for chunk in chunks]


def cut_file(file: DataFileInfo, cuts: Sequence[float]) -> list[FileSplit]:
    """Chunks that follow each other and cover the file, cut by rows if they are counted."""
    if file.record_count is not None:
        rows = pairwise(_bounds(0, file.record_count, cuts))
        return [FileSplit(file, RowRange(a, b - a)) for a, b in rows]
    if not file.splittable:
        return [FileSplit(file)]
    assert file.file_size is not None
    spans = pairwise(_bounds(file.body_offset, file.file_size, cuts))
    return [FileSplit(file, byte_range=ByteRange(a, b - a)) for a, b in spans]


def assert_same_rows(got: pa.Table, expected: pa.Table) -> None:
    """Same rows in the same order; columns may be in another order, types that cast safely."""
    assert sorted(got.column_names) == sorted(expected.column_names)
    ordered = got.select(expected.column_names).cast(expected.schema)
    assert ordered.to_pylist() == expected.to_pylist()


def _bounds(start: int, stop: int, cuts: Iterable[float]) -> list[int]:
    return [start, *sorted(start + int(cut * (stop - start)) for cut in cuts), stop]


def concatenated(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return all tables as one; without tables, return one without rows."""
    parts = list(tables)
    return pa.concat_tables(parts) if parts else schema.empty_table()
