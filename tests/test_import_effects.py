"""Importing the package has no effects on the process that imports it."""

from __future__ import annotations

import json
import subprocess
import sys

OBSERVED = """
import atexit, copyreg, gc, importlib, json, os, pkgutil, signal, sys
from multiprocessing.reduction import ForkingPickler
from torch.utils.data._utils.collate import default_collate_fn_map

effects = []

def observed(name, register):
    def call(*args, **options):
        frame = sys._getframe(1)
        while frame is not None and not frame.f_globals["__name__"].startswith("headrace"):
            # What another library registers for itself, while it is imported, is its own affair.
            frame = None if "importlib" in frame.f_code.co_filename else frame.f_back
        if frame is not None:
            effects.append(f"{frame.f_globals['__name__']}: {name}")
        return register(*args, **options)
    return call

os.register_at_fork = observed("os.register_at_fork", os.register_at_fork)
atexit.register = observed("atexit.register", atexit.register)
signal.signal = observed("signal.signal", signal.signal)
registries = {
    "gc.callbacks": lambda: gc.callbacks,
    "torch's default collate": default_collate_fn_map.values,
    "copyreg": copyreg.dispatch_table.values,
    "ForkingPickler": ForkingPickler._extra_reducers.values,
}

import headrace

for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except headrace.MissingExtraError:
        pass
    except ModuleNotFoundError as error:  # of an extra that is not installed
        assert not error.name.startswith("headrace"), error
for name, entries in registries.items():
    for entry in entries():
        owner = getattr(entry, "__module__", None) or ""
        if owner.startswith("headrace"):
            effects.append(f"{owner}: {name}")
print(json.dumps(sorted(effects)))
"""


def test_no_module_registers_anything_when_it_is_imported() -> None:
    result = subprocess.run(
        [sys.executable, "-c", OBSERVED], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == []
