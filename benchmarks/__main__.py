"""``python -m benchmarks``: install the peers, then run everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    subprocess.run(["sh", HERE / "setup_peers.sh"], check=True)
    sys.exit(subprocess.run([sys.executable, HERE / "run.py", *sys.argv[1:]]).returncode)
