"""The sparse parameter table: a C++ core that hashes, pools, merges and updates rows."""

from heterps_hpc.core._core import SpillError
from heterps_hpc.core.config import TableConfig
from heterps_hpc.core.hashing import hash64, partition_of
from heterps_hpc.core.table import Pulled, Rows, Snapshot, Table
from heterps_hpc.core.thread_pool import ThreadPool

__all__ = [
    "Pulled",
    "Rows",
    "Snapshot",
    "SpillError",
    "Table",
    "TableConfig",
    "ThreadPool",
    "hash64",
    "partition_of",
]
