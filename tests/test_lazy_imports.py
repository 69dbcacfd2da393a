"""Public names are imported when they are used, and torch only by modules that need it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace


def imports_torch(code: str) -> bool:
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return result.stdout.splitlines()[-1] == "True"


@pytest.mark.parametrize(
    "code",
    [
        "import headrace",
        "from headrace import index_tars, write_captions, ReadError, DataFileInfo",
        "from headrace import TarWriter\nfrom headrace.write import copy_rows, shuffle_into",
        "from headrace.cli import main\nmain([])",
        "from headrace.cli import main\nmain(['index', 'no such place'])",
    ],
)
def test_indexing_and_writing_need_no_torch(code: str) -> None:
    assert not imports_torch(code)


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "{files}"],
        ["inspect", "{tars}"],
        ["convert", "{files}", "{target}", "--to", "arrow"],
        ["convert", "{files}", "{target}", "--to", "tar"],
        ["convert", "{tars}", "{target}", "--to", "tar"],
        ["shuffle-into", "{files}", "{target}"],
    ],
)
def test_commands_need_no_torch(command: list[str], tmp_path: Path) -> None:
    places = {name: str(tmp_path / name) for name in ("files", "tars", "target")}
    os.mkdir(places["files"])
    pq.write_table(pa.table({"x": [1, 2, 3]}), f"{places['files']}/a.parquet")
    with headrace.TarWriter(places["tars"]) as writer:
        writer.write({"__key__": "0", "txt": "text"})
    words = [word.format(**places) for word in command]
    assert not imports_torch(f"from headrace.cli import main\nassert main({words!r}) == 0")


def test_a_loader_does() -> None:
    assert imports_torch("from headrace import TarDataset")


def test_a_loader_needs_no_accelerate() -> None:
    code = (
        "import sys\n"
        "sys.modules['accelerate'] = None\n"
        "import pyarrow as pa, headrace\n"
        "table = pa.table({'x': [1, 2, 3]})\n"
        "loader, _ = headrace.ArrowDataset.create_dataloader(table, batch_size=3)\n"
        "print(next(iter(loader))['x'].tolist())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert result.stdout == "[1, 2, 3]\n", result.stderr


def test_every_public_name_is_there() -> None:
    assert {*headrace.__all__} <= {*dir(headrace)}
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    assert headrace.access.RowDataset
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        headrace.nothing  # noqa: B018


def test_an_import_of_all_names_keeps_the_open_of_python() -> None:
    names: dict[str, object] = {}
    exec("from headrace import *", names)
    assert "open" not in names
    assert "StructuredDataset" in names
    assert callable(headrace.open)


def test_windows_is_refused_at_import_before_anything_is_loaded() -> None:
    code = (
        "import sys\n"
        "sys.platform = 'win32'\n"
        "try:\n"
        "    import headrace\n"
        "except ImportError as error:\n"
        "    print(error)\n"
        "print(sorted({'pyarrow', 'numpy', 'torch'} & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    message, imported = result.stdout.splitlines()
    assert message.startswith("headrace does not run on Windows")
    assert "WSL" in message
    assert imported == "[]"
