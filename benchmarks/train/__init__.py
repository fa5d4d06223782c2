"""Training throughput against rivals: `python -m benchmarks.train`."""
