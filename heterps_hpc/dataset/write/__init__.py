"""Writes click logs; data_prep uses it, ranks and planners do not import it."""

from heterps_hpc.dataset.write.writer import DatasetWriter

__all__ = ["DatasetWriter"]
