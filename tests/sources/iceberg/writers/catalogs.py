"""Catalogs for the tests, which also write tables of version 3, as pyiceberg does not."""

from __future__ import annotations

import json
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import IcebergBaseModel
from servers.s3 import S3Server


class WritingCatalog(SqlCatalog):
    """pyiceberg's SQL catalog; metadata of version 3 is written too.

    `properties_for_users` is what another process gives to `load_catalog` to read the same tables.
    """

    @property
    def properties_for_users(self) -> dict[str, str]:
        return {"type": "sql", **self.properties}

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:
        said = json.loads(IcebergBaseModel.model_dump_json(metadata))
        if metadata.format_version >= 3:
            # pyiceberg starts it at nothing, and then adds nothing to it.
            said["next-row-id"] = next_row_id(metadata)
        with io.new_output(metadata_path).create() as stream:
            stream.write(json.dumps(said).encode())


def next_row_id(metadata: TableMetadata) -> int:
    """The first row id of version 3 that no snapshot has given to a row."""
    return max(
        ((snap.first_row_id or 0) + (snap.added_rows or 0) for snap in metadata.snapshots),
        default=0,
    )


def local_catalog(folder: Path, *, name: str = "tests", **properties: str) -> WritingCatalog:
    """Tables under `folder`/warehouse, listed in a sqlite file beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    return WritingCatalog(
        name,
        **{
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
            **properties,
        },
    )


def s3_properties(server: S3Server) -> dict[str, str]:
    """How pyiceberg names what reaches the server."""
    return {
        "s3.endpoint": server.url,
        "s3.access-key-id": server.key,
        "s3.secret-access-key": server.secret,
        "s3.region": server.region,
    }
