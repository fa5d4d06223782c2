"""The sparse parameter table: a C++ core that hashes, pools, merges and updates rows."""

from heterps_hpc.core._core import SpillError
from heterps_hpc.core.config import TableConfig
from heterps_hpc.core.hashing import hash64, partition_of
from heterps_hpc.core.side_by_side import SideBySide
from heterps_hpc.core.table import Pulled, Rows, Snapshot, Table

__all__ = [
    "Pulled",
    "Rows",
    "SideBySide",
    "Snapshot",
    "SpillError",
    "Table",
    "TableConfig",
    "hash64",
    "partition_of",
]
