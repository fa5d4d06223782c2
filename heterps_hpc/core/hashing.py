"""The hashes that settle where a key lives, for code that must agree with the table."""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.core import _core


def partition_of(keys: NDArray[np.uint64], num_partitions: int) -> NDArray[np.uint32]:
    """The partition of each key."""
    return _core.partitions_of(keys, num_partitions)


@overload
def hash64(value: str | bytes, seed: int = 0) -> int: ...
@overload
def hash64(value: NDArray[np.uint64], seed: int = 0) -> NDArray[np.uint64]: ...
def hash64(value: str | bytes | NDArray[np.uint64], seed: int = 0) -> int | NDArray[np.uint64]:
    """A 64-bit hash of a string, or of every key of an array."""
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return _core.hash_bytes(value, seed)
    return _core.hash_array(value, seed)
