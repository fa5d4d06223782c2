"""Where to cut a column of times, from a fair sample of it: memory does not grow with the data."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.dataset.write.sketch import KeySample

_SAMPLE_SIZE = 1 << 20


def sampled_cuts(
    times: Iterable[NDArray[np.int64]], fractions: tuple[float, ...]
) -> tuple[int, ...]:
    """The times below which those fractions lie: exact up to a million rows, then sampled."""
    sample = KeySample(seed=0, size=_SAMPLE_SIZE)
    for block in times:
        sample.add(block.view(np.uint64))
    drawn = np.sort(sample.result().view(np.int64))
    if not len(drawn):
        return tuple(0 for _ in fractions)
    cuts = []
    for fraction in fractions:
        place = round(fraction * len(drawn))
        # rows before the cut go left; at the very end nothing is left for the right
        cuts.append(int(drawn[place]) if place < len(drawn) else int(drawn[-1]) + 1)
    return tuple(cuts)
