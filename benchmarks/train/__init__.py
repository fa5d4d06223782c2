"""Training throughput against contenders: `python -m benchmarks.train`."""
