#!/bin/sh
# Install the libraries that are compared with, each in its own environment: .venv-peers*.
# torch, pyarrow and numpy have the versions of .venv, so that both sides use the same ones.
set -eu
cd "$(dirname "$0")/.."
ground=$(mktemp)
trap 'rm -f "$ground"' EXIT

# So does pandas, where .venv has it: pyarrow imports it if it is installed, which takes memory.
.venv/bin/python - >"$ground" <<'PY'
from importlib.metadata import distributions
shared = {"pyarrow", "numpy", "pandas"}
print(*sorted({f"{d.name}=={d.version}" for d in distributions() if d.name in shared}), sep="\n")
print("torch==2.13.0")
PY

# install_peer FOLDER CONSTRAINTS REQUIREMENT...: torch is installed first, and must be kept.
install_peer() {
    folder=$1 constraints=$2
    shift 2
    [ -x "$folder/bin/python" ] || .venv/bin/python -m venv "$folder"
    if [ "$(cat "$folder/.installed" 2>/dev/null)" = "$*" ]; then return; fi
    echo "installing $* into $folder"
    xargs "$folder/bin/python" -m pip install --quiet <"$constraints"
    "$folder/bin/python" -m pip install --quiet -c "$constraints" "$@"
    "$folder/bin/python" - <<'PY'
import torch
assert torch.__version__.split("+")[0] == "2.13.0", torch.__version__
PY
    echo "$*" >"$folder/.installed"
}

install_peer .venv-peers "$ground" torch-dataloader-utils==0.2.0 s3fs==2026.9.0
install_peer .venv-peers-datasets "$ground" datasets==5.2.0
install_peer .venv-peers-lance "$ground" pylance==14.0.2
install_peer .venv-peers-litdata "$ground" litdata==0.2.76 polars==2.1.0
install_peer .venv-peers-tar "$ground" webshart==0.4.6 webdataset==1.0.2
# Ray's file reader imports fsspec's for HTTP, and its batches for torch come from ray.train.
install_peer .venv-peers-ray "$ground" 'ray[data,train]==2.60.0' 'fsspec[http]'

# Mosaic streaming requires numpy below 2.2.
older=$(mktemp)
trap 'rm -f "$ground" "$older"' EXIT
{ grep -E '^(torch|pyarrow)==' "$ground"; echo 'numpy<2.2'; } >"$older"
install_peer .venv-peers-mosaic "$older" mosaicml-streaming==0.13.0
