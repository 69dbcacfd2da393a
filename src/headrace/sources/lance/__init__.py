"""Lance datasets: a fixed version, opened by the process that reads."""
