#!/bin/sh
# The libraries that are compared with, in an environment of their own: .venv-peers.
# pyarrow and numpy are those of .venv, so that both sides stand on the same ground.
set -eu
cd "$(dirname "$0")/.."
[ -x .venv-peers/bin/python ] || .venv/bin/python -m venv .venv-peers
# pandas too, where .venv has it: pyarrow imports it if it is there, which shows in memory.
same=$(.venv/bin/python - <<'PY'
from importlib.metadata import distributions
shared = {"pyarrow", "numpy", "pandas"}
print(*sorted({f"{d.name}=={d.version}" for d in distributions() if d.name in shared}))
PY
)
# shellcheck disable=SC2086
.venv-peers/bin/python -m pip install --quiet -c constraints.txt \
    torch==2.13.0 torch-dataloader-utils==0.2.0 $same
