"""Files of tables are never written again, so that they can be kept without etags."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from writers.catalogs import WritingCatalog
from writers.data_files import append_rows
from writers.delete_files import append_position_deletes

from headrace import IcebergDataset


def test_the_second_job_reads_from_the_cache(s3_catalog: WritingCatalog, tmp_path: Path) -> None:
    rows = pa.table({"id": range(5000)})
    table = s3_catalog.create_table("db.kept", rows.schema)
    (path,) = append_rows(table, rows)
    append_position_deletes(table, {path: [0, 4999]})
    for fetched in (True, False):
        loader, _ = IcebergDataset.create_dataloader(
            f"{s3_catalog.name}.db.kept",
            catalog_config=s3_catalog.properties_for_users,
            cache_dir=tmp_path / "cache",
            num_workers=0,
            batch_size=1000,
            output_format="numpy",
        )
        assert sorted(i for batch in loader for i in batch["id"].tolist()) == [*range(1, 4999)]
        assert (loader.stats()["fetched_bytes"] > 0) == fetched
