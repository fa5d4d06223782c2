"""Is the run well: checks before it, heartbeats and a watchdog during it."""
