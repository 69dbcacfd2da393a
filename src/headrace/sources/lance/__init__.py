"""Lance datasets: a pinned version, opened by the process that reads, or read for it by another."""
