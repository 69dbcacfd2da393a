"""The public names of the package. Adding or removing one by accident fails here."""

from __future__ import annotations

import inspect
import re

import pytest

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


def documented_names() -> list[str]:
    """Return the public classes and functions that are no errors, whose class lines say it all."""
    kinds = (type, type(inspect.cleandoc))
    public = {name: getattr(headrace, name) for name in [*headrace.__all__, "open"]}
    return [
        name
        for name, value in public.items()
        if isinstance(value, kinds)
        and not (inspect.isclass(value) and issubclass(value, Exception))
    ]


@pytest.mark.parametrize("name", documented_names())
def test_public_names_have_arguments_results_and_examples(name: str) -> None:
    """Check that every parameter is explained, what is returned and raised, and an example."""
    public = getattr(headrace, name)
    text = inspect.getdoc(public) or ""
    assert "\nExamples:\n" in text
    functions = [public] if inspect.isfunction(public) else []
    if inspect.isclass(public) and not getattr(public, "_is_protocol", False):
        functions = [public.__init__, *filter(None, [getattr(public, "create_dataloader", None)])]
        text += "".join(f"\n{inspect.getdoc(base)}" for base in public.__mro__[1:-1])
        text += f"\n{inspect.getdoc(public.__init__)}"
    for function in functions:
        about = text + "\n" + (inspect.getdoc(function) or "")
        parameters = [one for one in inspect.signature(function).parameters if one != "self"]
        # A line of "Args:" or "Attributes:", or one of the generated list of keywords.
        lacking = [one for one in parameters if not re.search(rf"\n +\**{one}(:| \()", about)]
        assert lacking == []
    if inspect.isfunction(public):
        assert "\nReturns:\n" in text
        assert "\nRaises:\n" in text
