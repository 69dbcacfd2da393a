#!/bin/sh
# The libraries that are compared with, in an environment of their own: .venv-peers.
# pyarrow and numpy are those of .venv, so that both sides stand on the same ground.
set -eu
cd "$(dirname "$0")/.."
[ -x .venv-peers/bin/python ] || .venv/bin/python -m venv .venv-peers
version_in_venv() {
    .venv/bin/python -c "from importlib.metadata import version; print(version('$1'))"
}
.venv-peers/bin/python -m pip install --quiet -c constraints.txt \
    torch==2.13.0 torch-dataloader-utils==0.2.0 \
    "pyarrow==$(version_in_venv pyarrow)" "numpy==$(version_in_venv numpy)"
