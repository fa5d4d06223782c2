"""From a category to its 64-bit key: fixed and documented, so that a server of the model can
compute the same keys.

    base(slot)          = XXH3-64 of the slot's name, UTF-8
    key of an integer   = mix64(base(slot) + integer mod 2**64)          (0 <= integer < 2**63)
    key of a text       = XXH3-64 of the text, UTF-8, with seed base(slot)
    key of "missing"    = mix64(base(slot) - 1),  of "rare" = mix64(base(slot) - 2)

`mix64` is SplitMix64's finaliser, a bijection: two integers of a slot never collide. Criteo's
8-digit hexadecimal categories are integers in this sense.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xxhash
from numpy.typing import NDArray

from heterps_hpc.counter_rng import mix64, unmix64

UInt64s = NDArray[np.uint64]

_WORD = 1 << 64


def slot_base(slot: str) -> int:
    """The number that sets the keys of one slot apart from those of others."""
    return xxhash.xxh3_64_intdigest(slot.encode())


def keys_of_integers(slot: str, values: UInt64s) -> UInt64s:
    """Keys of categories that are integers."""
    return mix64(values + np.uint64(slot_base(slot)))


def integer_of(slot: str, keys: UInt64s) -> UInt64s:
    """The integers that these keys were made of; anything at all for keys of texts."""
    return unmix64(keys) - np.uint64(slot_base(slot))


def keys_of_texts(slot: str, texts: Iterable[bytes]) -> UInt64s:
    """Keys of categories that are texts, given as UTF-8."""
    seed = slot_base(slot)
    hashed = (xxhash.xxh3_64_intdigest(text, seed) for text in texts)
    return np.fromiter(hashed, np.uint64)


def missing_key(slot: str) -> int:
    """The key of an empty field."""
    return _special(slot, 1)


def rare_key(slot: str) -> int:
    """The one key of all categories below the frequency threshold."""
    return _special(slot, 2)


def _special(slot: str, which: int) -> int:
    return int(mix64(np.array([(slot_base(slot) - which) % _WORD], np.uint64))[0])


def capped(slot: str, keys: UInt64s, max_keys: int) -> UInt64s:
    """The same keys folded into at most max_keys different ones."""
    return keys_of_integers(slot, keys % np.uint64(max_keys))
