"""Forward-only passes over a data set: evaluation and prediction.

They use a communicator and buffers of their own, because rows of the next training batches may
already be in flight, and look-ups that create nothing, so that training continues as if they had
not happened.
"""

from __future__ import annotations

import logging
from contextlib import closing

import numpy as np

from heterps_hpc.dataset import Dataset
from heterps_hpc.runtime.batches import Readers, one_pass
from heterps_hpc.runtime.exchange.transport import Exchange
from heterps_hpc.runtime.metrics.scored import Scored, join_columns
from heterps_hpc.runtime.metrics.training_log import quality
from heterps_hpc.runtime.rank import Rank, TrainingFailed

log = logging.getLogger(__name__)

_RING = 2


class Evaluator:
    """Scores a data set with the tables and modules as they are now."""

    def __init__(self, rank: Rank, dataset: Dataset) -> None:
        self._rank = rank
        self._dataset = dataset
        self._exchange = Exchange(rank.world.evaluation)
        self._sparse = rank.sparse_role(self._exchange, ring=_RING)
        self._dense = rank.dense_role(self._exchange, ring=_RING)
        self._steps = one_pass(dataset, rank.job.train)

    def evaluate(self) -> dict[str, float]:
        """Exact quality over all samples, the same on every rank."""
        columns = self.scores()
        found = None if columns is None else self._quality(columns)
        result: dict[str, float] = self._rank.world.control.bcast(found, root=self._rank.reporter)
        return result

    def _quality(self, columns: list[np.ndarray]) -> dict[str, float]:
        """What can be computed: scores that are not numbers have no quality, and are counted."""
        samples = float(len(columns[0]))
        bad = int((~np.isfinite(columns[0])).sum())
        if bad == 0:
            is_logit = self._rank.model.score_is_logit
            return quality(columns, is_logit=is_logit) | {"samples": samples}
        what = f"{bad} of {len(columns[0])} scores of the test data are not finite after step "
        if self._rank.job.train.on_nan == "stop":
            raise TrainingFailed(
                f"{what}{self._rank.step}; lower the learning rate, or clip gradients "
                "(train.dense.clip_norm)"
            )
        log.warning("%s%d; no quality is reported", what, self._rank.step)
        return {"samples": samples, "nonfinite_scores": float(bad)}

    def scores(self) -> list[np.ndarray] | None:
        """Scores, labels, weights and sample ids in sample order, on the reporter."""
        scored = self._pass()
        gathered = self._rank.world.control.gather(scored.columns(), root=self._rank.reporter)
        if gathered is None:
            return None
        columns = join_columns(gathered)
        order = np.argsort(columns[3], kind="stable")
        return [column[order] for column in columns]

    def _pass(self) -> Scored:
        scored = Scored()
        if self._dense is not None:
            self._dense.modules.set_training(False)
        readers = Readers(self._rank, self._dataset, self._steps, self._dense, weigh=False)
        with closing(readers):
            for step in range(self._steps.total):
                self._rank.timer.pass_batches = (step, self._steps.total)
                if self._dense is not None:
                    self._dense.expect_rows(step, self._steps.num_rows(step))
                if self._sparse is not None:
                    self._sparse.evaluate(step, readers.keys())
                if self._dense is not None:
                    feed = readers.feed()
                    scored.add(self._dense.evaluate(step, feed), feed)
            self._exchange.settle_all()
        self._rank.timer.pass_batches = (0, 0)
        if self._dense is not None:
            self._dense.modules.set_training(True)
        return scored
