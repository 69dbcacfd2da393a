"""Workers keep memory that they free; who has set options of the allocator is left alone."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
from warm_interpreters import run_warm

SCRIPT = """
import resource
from headrace.loader.freed_memory import keep_freed_memory

def faults_of_buffers():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        [bytes([number]) * (20 << 20) for number in range(3)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
faults_of_buffers()
print(faults_of_buffers())
"""
PAGES = (20 << 20) // os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone has these options")
@pytest.mark.parametrize("is_set", [False, True])
def test_buffers_are_filled_again(tmp_path: Path, is_set: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("MALLOC_")}
    if is_set:
        environment["MALLOC_TRIM_THRESHOLD_"] = "131072"
    done = run_warm(script, env=environment)
    assert done.returncode == 0, done.stderr
    faults = int(done.stdout)
    assert faults > 2 * PAGES if is_set else faults < PAGES
