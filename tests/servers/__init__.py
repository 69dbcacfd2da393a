"""Real servers for the tests and benchmarks of storage, and a proxy that injects faults."""
