"""Which part (train, valid, test) a row belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.options import PARTS, PrepareOptions
from heterps_hpc.counter_rng import random_bits, seed_of

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """By a seeded hash of the row's place in the input, or by time; a pure function of both."""

    kind: str
    seed: int
    hash_cuts: tuple[int, ...]
    time_cuts: tuple[int, ...] = ()

    @classmethod
    def of(cls, options: PrepareOptions, time_cuts: tuple[int, ...]) -> Split:
        """The split that the options ask for."""
        cuts = tuple(int(fraction * 2**63) * 2 for fraction in cut_fractions(options))
        return cls(options.split, options.seed, cuts, time_cuts)

    def parts(
        self, file: int, segment: int, first: int, time: Int64s
    ) -> Iterator[tuple[str, Int64s | None]]:
        """(part, its rows) for the rows from `first` on of a segment; None stands for all."""
        if self.kind == "none":
            yield PARTS[0], None
            return
        if self.kind == "hash":
            seed = seed_of(self.seed, file, segment)
            value: NDArray[np.uint64] | Int64s = random_bits(seed, first, len(time))
            cuts: NDArray[np.uint64] | Int64s = np.array(self.hash_cuts, np.uint64)
        else:
            value, cuts = time, np.array(self.time_cuts, np.int64)
        place = np.searchsorted(cuts, value, side="right")
        for number, part in enumerate(PARTS):
            rows = np.flatnonzero(place == number)
            if len(rows):
                yield part, rows


def cut_fractions(options: PrepareOptions) -> tuple[float, float]:
    """Where train ends and where valid ends."""
    train = 1 - options.valid_fraction - options.test_fraction
    return train, 1 - options.test_fraction
