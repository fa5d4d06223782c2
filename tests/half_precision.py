"""Rows of two bytes by the definition, in numpy: what the core and the oracle are held to.

A number is a multiple of the distance between its two neighbours in the short format. It becomes
the upper one with the probability of the remainder, by random bits of (seed, table, key, step,
column).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.core import hash64
from heterps_hpc.counter_rng import splitmix64

Floats = NDArray[np.float32]
# format -> (digits after the first one, exponent of the smallest normal number, largest number)
FORMATS = {"float16": (10, -14, 65504.0), "bfloat16": (7, -126, (2 - 2**-7) * 2.0**127)}


def to_nearest(values: NDArray[Any], precision: str) -> Floats:
    """As new and loaded rows are rounded."""
    return _round(values, np.full(values.shape, 0.5), precision)


def by_chance(
    values: NDArray[Any], keys: NDArray[np.uint64], table: str, seed: int, step: int, precision: str
) -> Floats:
    """As the rows of these keys are rounded at a push."""
    salt = np.uint64(hash64(table, seed)) ^ splitmix64(np.array([step], np.uint64))
    base = _mix64(keys ^ _mix64(salt))
    bits = _element_bits(base, values.shape[1])
    digits = 13 if precision == "float16" else 16  # of a float32, those that are dropped
    return _round(values, (bits >> np.uint32(32 - digits)) / 2.0**digits, precision)


def _round(values: NDArray[Any], chance: NDArray[np.float64], precision: str) -> Floats:
    digits, least, largest = FORMATS[precision]
    size = np.minimum(np.abs(np.asarray(values, np.float64)), largest)
    exponent = np.maximum(np.frexp(size)[1] - 1, least)
    unit = np.ldexp(1.0, exponent - digits)
    rounded = np.minimum(np.floor(size / unit + chance) * unit, largest)
    return np.asarray(np.copysign(rounded, values), np.float32)


def _mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for constant in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = (x ^ (x >> np.uint64(33))) * np.uint64(constant)
    return x ^ (x >> np.uint64(33))


def _element_bits(base: NDArray[np.uint64], dim: int) -> NDArray[np.uint32]:
    low, high = base.astype(np.uint32)[:, None], (base >> np.uint64(32)).astype(np.uint32)[:, None]
    x = low + np.arange(dim, dtype=np.uint32) * np.uint32(0x9E3779B9)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = ((x ^ (x >> np.uint32(13))) + high) * np.uint32(0xC2B2AE35)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    return x ^ (x >> np.uint32(15))
