"""Train click-through networks on CPU and GPU partitions at once, at the least money."""

__version__ = "0.1.0"
