"""The table of requests to the object store by each arm, with the settings of each library."""

from __future__ import annotations

from statistics import median

from comparison import FIELDS, Passes
from peers import share_of
from remote_store import NETWORKS, network_of
from tar_rows import TAR_MODULES

__all__ = ["requests"]

_READERS = {
    "remote": "headrace",
    "tdu_s3": "torch-dataloader-utils",
    "arrow_s3": "pyarrow.dataset",
    "download_s3": "obstore",
}
_WORKS = {
    "all": "all columns",
    "bytes": "bytes alone",
    "two": "2 of 21 columns",
    "startup": "start-up",
}
_SETTINGS = {
    "default": "",
    "ahead": "larger read-ahead",
    "round-robin-": "RoundRobinSplitStrategy, ",
    "uncached-": 'default_cache_type="none", ',
    "workers-": "num_workers=",
}
_MB = 1e6


def requests(passes: Passes) -> str:
    """Return medians, by work; rates as shares of the fastest arm for the same work."""
    names = [name for name in passes if network_of(name) and not name.startswith(TAR_MODULES)]
    if not names:
        return "Object stores were not part of this run."
    lines = [
        "| work | reader | rate, of the fastest | requests | MB | × needed | before: requests |"
        " passes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rates = {name: _median(passes, name, "rate") for name in names}
    for name in sorted(names, key=lambda one: (_work_order(one), -rates[one])):
        best = max(rates[one] for one in names if _work_order(one) == _work_order(name))
        lines.append(_line(name, passes, rates[name] / best))
    return "\n".join(lines)


def _line(name: str, passes: Passes, share: float) -> str:
    work, reader = _titles(name)
    needed = ""
    if "needed_bytes" in passes[name][0]:
        needed = f"{_median(passes, name, 'fetched_per_needed'):.3f}"
    cells = (
        work,
        reader if share_of(name) == 1 else f"{reader}, {share_of(name):.0%} of the files",
        f"{share:.3f}",
        f"{median(one['requests'] for one in passes[name]):,.0f}",
        f"{median(one['fetched_bytes'] for one in passes[name]) / _MB:,.1f}",
        needed,
        f"{median(one['requests_before'] for one in passes[name]):,.0f}",
        str(len(passes[name])),
    )
    return "| " + " | ".join(cells) + " |"


def _parts(name: str) -> tuple[str, str, str, str]:
    """Return the module, the work, the setting and the network of an arm."""
    module, _, rest = name.partition(".")
    work, *setting, network = rest.split("-")
    return module, work, "-".join(setting), network


def _work_order(name: str) -> tuple[int, int]:
    _, work, _, network = _parts(name)
    return list(_WORKS).index(work), list(NETWORKS).index(network)


def _titles(name: str) -> tuple[str, str]:
    module, work, setting, network = _parts(name)
    for short, words in _SETTINGS.items():
        setting = setting.replace(short, words)
    reader = _READERS[module] + (f", {setting}" if setting else "")
    return f"{_WORKS[work]}, {NETWORKS[network].title}", reader


def _median(passes: Passes, name: str, field: str) -> float:
    return median(FIELDS[field](one) for one in passes[name])
