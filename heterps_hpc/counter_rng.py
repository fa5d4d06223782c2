"""Counter-based randomness: the same numbers on every rank, machine and library version.

Random choices of the format (the order of rows, the key samples, splits, synthetic rows) are
functions of a seed and a counter, never of a generator's state, so no rank has to send another
what it drew, and a file written today is read in the same order in years to come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

UInt64s = NDArray[np.uint64]

GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix_bits(values: Any, shift: Callable[[Any, int], Any], constant: Callable[[int], Any]) -> Any:
    """SplitMix64's finaliser over any array type: `shift` is a logical one to the right, and
    `constant` turns 64 bits into what the array multiplies by. numpy's and torch's are below and
    in `models.dropout`."""
    mixed = values ^ shift(values, 30)
    mixed *= constant(0xBF58476D1CE4E5B9)
    mixed ^= shift(mixed, 27)
    mixed *= constant(0x94D049BB133111EB)
    mixed ^= shift(mixed, 31)
    return mixed


def mix64(values: UInt64s) -> UInt64s:
    """SplitMix64's finaliser: a bijection of 64 bits in which every input bit moves every output.

    Being a bijection it never makes two different inputs collide.
    """
    mixed: UInt64s = mix_bits(values, _shift, np.uint64)
    return mixed


def unmix64(values: UInt64s) -> UInt64s:
    """The inverse of `mix64`."""
    found = values ^ _shift(values, 31) ^ _shift(values, 62)
    found = found * np.uint64(0x319642B2D24D8EC3)  # the multipliers' inverses modulo 2**64
    found = found ^ _shift(found, 27) ^ _shift(found, 54)
    found = found * np.uint64(0x96DE1B173F119089)
    return found ^ _shift(found, 30) ^ _shift(found, 60)


def _shift(values: UInt64s, count: int) -> UInt64s:
    return values >> np.uint64(count)


def splitmix64(values: UInt64s) -> UInt64s:
    """SplitMix64's step for every element: add the golden ratio, then mix all bits."""
    return mix64(values + np.uint64(GOLDEN))


def stream_seed(*parts: int | str) -> int:
    """64 bits that stand for a list of names and numbers, in which their order counts."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def seed_of(*parts: int) -> int:
    """One 64-bit seed from several integers, in which their order counts."""
    state = 0
    for part in parts:
        state = (state + GOLDEN + (part & _MASK)) & _MASK
        state = int(mix64(np.array([state], np.uint64))[0])
    return state


def random_bits(seed: int, first: int, count: int) -> UInt64s:
    """64 random bits for each of the counters first .. first + count - 1."""
    counters = np.arange(count, dtype=np.uint64)
    counters *= np.uint64(GOLDEN)
    counters += np.uint64((seed + first * GOLDEN) & _MASK)
    return mix64(counters)


def permutation(seed: int, count: int) -> NDArray[np.int64]:
    """A random order of range(count).

    Sorts random bits that carry their index in the low bits: no ties, so that the result does
    not depend on the sorting algorithm, and a plain sort is several times faster than an argsort.
    """
    index_bits = max(count - 1, 0).bit_length()
    if index_bits > 32:
        raise ValueError(f"cannot shuffle {count} items at once; the limit is 2**32")
    mask = np.uint64((1 << index_bits) - 1)
    tagged = random_bits(seed, 0, count)
    tagged &= ~mask
    tagged |= np.arange(count, dtype=np.uint64)
    tagged.sort()
    tagged &= mask
    return tagged.view(np.int64)
