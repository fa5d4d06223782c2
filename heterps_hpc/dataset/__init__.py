"""The click-log format: a directory of HDF5 shards and a manifest, written once, read by ranks.

Writers are imported from heterps_hpc.dataset.write, so that a rank or a planner does not load them.
"""

from heterps_hpc.dataset.columns import Keys, SampleRows, offsets_of
from heterps_hpc.dataset.manifest import (
    Compression,
    DatasetManifest,
    DatasetShard,
    Schema,
    SlotSpec,
)
from heterps_hpc.dataset.read.dataset import ColumnSelection, Dataset
from heterps_hpc.dataset.read.order import Order, Position
from heterps_hpc.dataset.read.reader import Batch, Reader

__all__ = [
    "Batch",
    "ColumnSelection",
    "Compression",
    "Dataset",
    "DatasetManifest",
    "DatasetShard",
    "Keys",
    "Order",
    "Position",
    "Reader",
    "SampleRows",
    "Schema",
    "SlotSpec",
    "offsets_of",
]
