"""The public names of the package. Adding or removing one by accident fails here."""

from __future__ import annotations

import headrace

PUBLIC = {
    "AccessDeniedError",
    "ArrayRecordDataset",
    "ArrowDataset",
    "BucketBatchSampler",
    "ByteRange",
    "ConversionError",
    "DataFileInfo",
    "DeviceMemoryError",
    "EvenBatchesSplitStrategy",
    "FileChangedError",
    "FileSplit",
    "HeadraceError",
    "IcebergDataFileInfo",
    "IcebergDataset",
    "LanceDataset",
    "MissingExtraError",
    "NUMERIC",
    "NothingFoundError",
    "OptionError",
    "PaimonDataset",
    "PlanError",
    "RankMismatchError",
    "ReadError",
    "RoundRobinSplitStrategy",
    "RowGroups",
    "RowRange",
    "SchemaError",
    "SkippedDataWarning",
    "Source",
    "SourceDataset",
    "Split",
    "SplitStrategy",
    "StaleIndexError",
    "StateMismatchError",
    "StatefulLoader",
    "StructuredDataset",
    "TarDataset",
    "TarShards",
    "TarWriter",
    "TargetSizeSplitStrategy",
    "UnknownOptionError",
    "VideoFramesDataset",
    "WorkerError",
    "WriteError",
    "index_tars",
    "merge_states",
    "push_to_hub",
    "shuffle_into",
    "write_captions",
}


def test_public_names() -> None:
    assert set(headrace.__all__) == PUBLIC
    names = {name for name in dir(headrace) if not name.startswith("_")}
    packages = {
        "access",
        "integrations",
        "loader",
        "plan",
        "sources",
        "storage",
        "testing",
        "write",
    }
    imported = {"annotations", "convert", "errors", "model", "options", "process", "cli", "stream"}
    beside = {"TYPE_CHECKING", "Any", "import_module", "matrices", "open", "sys"}
    assert names - PUBLIC - packages - imported - beside == set()
