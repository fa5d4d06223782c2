"""Negative keys as a pure function of (seed, epoch, sample, draw).

Sampled negatives are ordinary slots whose keys nobody stores and nobody sends: every rank that
needs them computes them, and gets the same keys whatever the number of ranks, the micro-batches
or the placement. That needs a counter-based generator (SplitMix64) instead of one with a state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.counter_rng import GOLDEN, UInt64s, splitmix64, stream_seed
from heterps_hpc.errors import UserError


def distinct_keys(key_sample: UInt64s) -> UInt64s:
    """The keys that negatives are drawn from: each distinct key of the sample once, sorted.

    Call it once per slot, not per batch.
    """
    return np.unique(np.asarray(key_sample, np.uint64))


def draw_negatives(
    candidates: UInt64s,
    num_keys: int,
    seed: int,
    epoch: int,
    sample_ids: NDArray[np.int64],
    slot: str = "",
) -> UInt64s:
    """`num_keys` negatives for each sample, uniform over the candidates (uint64[n, num_keys]).

    Candidates are `distinct_keys` of the data set's key sample; a candidate listed twice is twice
    as likely. `slot` is the name of the derived slot, so that two of them draw differently. A draw
    may hit the sample's own positive key: refusing that would make one draw depend on another.
    """
    if len(candidates) == 0:
        raise UserError(
            f"slot {slot!r} draws negatives from an empty key sample; its source slot has no "
            "keys in this data set"
        )
    stream = np.uint64(stream_seed("negatives", slot, seed, epoch))
    per_sample = splitmix64(np.asarray(sample_ids).astype(np.uint64) ^ stream)
    draws = np.arange(num_keys, dtype=np.uint64) * np.uint64(GOLDEN)
    bits = splitmix64(per_sample[:, None] + draws[None, :])
    return candidates[_scale(bits, len(candidates))]


def _scale(bits: UInt64s, limit: int) -> NDArray[np.int64]:
    """Random 64 bits to 0 .. limit-1 by multiplication; fair to 2**-32 for limits below 2**32."""
    high = bits >> np.uint64(32)
    return ((high * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)
