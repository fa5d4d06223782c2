"""Checkpoints as files: format, checks, resharding, export. Needs neither MPI nor torch."""

from heterps_hpc.checkpoint.contents import Contents
from heterps_hpc.checkpoint.manifest import ArraySpec, Manifest, RowFormat, Segment, ShardSpec
from heterps_hpc.checkpoint.shardreader import DamagedCheckpoint, ShardReader
from heterps_hpc.checkpoint.shardwriter import PlannedArray, ShardWriter
from heterps_hpc.checkpoint.store import Checkpoint, newest

__all__ = [
    "ArraySpec",
    "Checkpoint",
    "Contents",
    "DamagedCheckpoint",
    "Manifest",
    "PlannedArray",
    "RowFormat",
    "Segment",
    "ShardReader",
    "ShardSpec",
    "ShardWriter",
    "newest",
]
