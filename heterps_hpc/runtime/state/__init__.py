"""A rank's state between two batches: captured, saved, restored."""
