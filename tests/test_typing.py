"""Editors see the names, types and choices of keywords, as mypy reports them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = """\
import headrace
from headrace import IcebergDataset, StructuredDataset, TarDataset

loader, dataset = StructuredDataset.create_dataloader("a", "csv", batch_size=8, num_workers=2)
loader.state_dict()
dataset.loader(num_workers=0)
headrace.open("a", batch_size=8).loader(pin_memory=True)
TarDataset.create_dataloader("a", bucketed=True, target_pixel_area=65536, even=False)
IcebergDataset("a.b", {}, snapshot_id=3, prefetch_bytes="64MiB")
StructuredDataset("a", output_format="pandas")  # 10: a choice
StructuredDataset("a", "avro")  # 11: a choice
StructuredDataset("a", batch_size="8")  # 12: a type
StructuredDataset("a", batch_sise=8)  # 13: a name
StructuredDataset("a", num_workers=2)  # 14: a name of another call
StructuredDataset.create_dataloader("a", even=True)  # 15: a choice
dataset.loader(batch_size=8)  # 16: a name of another call
IcebergDataset("a.b", {}, snapshot_id="newest")  # 17: a type
headrace.open("a", batch_size="8")  # 18: a type
headrace.open("a", window_lenght=8)  # 19: a name
"""
WRONG_LINES = range(10, 20)


def test_mypy_sees_names_types_and_choices(tmp_path: Path) -> None:
    path = tmp_path / "user_code.py"
    path.write_text(CODE)
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    errors = [line for line in result.stdout.splitlines() if " error: " in line]
    lines = [int(error.split(":")[1]) for error in errors if "user_code.py" in error]
    assert sorted(set(lines)) == list(WRONG_LINES), result.stdout + result.stderr
