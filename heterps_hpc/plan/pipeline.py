"""Equation 4: from what the stages of a plan take to what a batch takes.

Stages of one batch wait for each other in three ways, and the slowest way counts:

    chain   Σ (once + spread/m) + (1 − 1/m) · max spread over stages with dense layers: dense
            parameters are synchronous, so their pipeline of m micro-batches drains once per batch.
            The links between them are parts of it as well: Σ (cut + waits)/m and the largest cut.
            While a stage does what it does once per batch (its tables, summing gradients) the
            others have drained and wait
    tables  a stage of tables alone pulls and pushes every batch; so does a link carry its rows
    loop    rows of batch t + 1 + s wait for the push of batch t. Between the two lie the way of
            the last gradients, the push, the pull, the way of the first rows and the chain, so
            all of these together take no longer than s + 1 batches

It is monotone in each part, so that least parts give a least T: the exact solver's bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class PlanParts(NamedTuple):
    """What a batch takes of stages together: of plans, or of any bounds on them."""

    chain_sum: Floats  # m · once + spread + cut of stages with dense layers; waits between them
    chain_max: Floats  # spread, or cut
    tables_max: Floats  # of stages of tables alone
    rows_max: Floats  # one way of pooled rows over a stage's link, of all stages

    def joined(self, other: PlanParts) -> PlanParts:
        """Of the stages of both."""
        return PlanParts(
            self.chain_sum + other.chain_sum,
            *(np.maximum(one, two) for one, two in zip(self[1:], other[1:], strict=True)),
        )


@dataclass(frozen=True)
class Pipeline:
    """How batches overlap: micro-batches within one, staleness between them."""

    micro_batches: int
    staleness: int

    def summed(self, once: Floats, spread: Floats) -> Floats:
        """What a stage adds to `chain_sum`."""
        return np.asarray(self.micro_batches * once + spread)

    def batch_seconds(self, parts: PlanParts) -> Floats:
        """T, seconds per batch."""
        return self.from_chain(self.chain_seconds(parts.chain_sum, parts.chain_max), parts)

    def chain_seconds(self, chain_sum: Floats, chain_max: Floats) -> Floats:
        """Seconds of a batch in the stages that the pipeline drains through."""
        m = self.micro_batches
        return np.asarray(chain_sum / m + (1 - 1 / m) * chain_max)

    def chain_budget(self, seconds: Floats, chain_max: Floats) -> Floats:
        """`chain_seconds` turned round: the sum of the chain for which it takes so long."""
        m = self.micro_batches
        return np.asarray(m * seconds - (m - 1) * chain_max)

    def loop_seconds(self, parts: PlanParts) -> Floats:
        """Of the loop what is not the chain: tables, and one micro-batch's rows each way."""
        return np.asarray(parts.tables_max + 2 / self.micro_batches * parts.rows_max)

    def from_chain(self, chain: Floats, parts: PlanParts) -> Floats:
        """T if the chain takes so long."""
        alone = np.maximum(parts.tables_max, parts.rows_max)
        loop = (self.loop_seconds(parts) + chain) / (self.staleness + 1)
        return np.asarray(np.maximum(np.maximum(chain, alone), loop))

    def chain_limit(self, seconds: Floats, parts: PlanParts) -> Floats:
        """The chain for which T is so long, where nothing but the chain makes it longer."""
        loop = (self.staleness + 1) * seconds - self.loop_seconds(parts)
        return np.asarray(np.minimum(seconds, loop))

    def where_loop_ends(self, parts: PlanParts) -> Floats:
        """The chain above which it takes longer itself than its part of the loop."""
        return np.asarray(self.loop_seconds(parts) / max(self.staleness, 1))
