"""Money and time of every scheduler: `python -m benchmarks.schedulers`."""
