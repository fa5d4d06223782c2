"""The click-log format: a directory of HDF5 shards and a manifest, written once, read by ranks."""

from heterps_hpc.dataset.columns import Keys, Rows, offsets_of
from heterps_hpc.dataset.manifest import Compression, Manifest, Schema, ShardSpec, SlotSpec
from heterps_hpc.dataset.read.dataset import Dataset
from heterps_hpc.dataset.read.order import Order, Position
from heterps_hpc.dataset.read.reader import Batch, Reader
from heterps_hpc.dataset.read.window import Want
from heterps_hpc.dataset.write.writer import DatasetWriter

__all__ = [
    "Batch",
    "Compression",
    "Dataset",
    "DatasetWriter",
    "Keys",
    "Manifest",
    "Order",
    "Position",
    "Reader",
    "Rows",
    "Schema",
    "ShardSpec",
    "SlotSpec",
    "Want",
    "offsets_of",
]
