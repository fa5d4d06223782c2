"""Forward-only passes over a data set: evaluation and prediction.

They use a communicator and buffers of their own, because rows of the next training batches may
already be under way, and look-ups that create nothing, so that training goes on as if they had
not happened.
"""

from __future__ import annotations

import numpy as np

from heterps_hpc.dataset import Dataset, Reader
from heterps_hpc.runtime.exchange.transport import Exchange
from heterps_hpc.runtime.lookahead import LookAhead
from heterps_hpc.runtime.metrics.training_log import Scored, join_columns, quality
from heterps_hpc.runtime.parts import Parts
from heterps_hpc.runtime.steps import Steps

_RING = 2


class Evaluator:
    """Scores a data set with the tables and modules as they are now."""

    def __init__(self, parts: Parts, dataset: Dataset, reporter: int) -> None:
        self._parts = parts
        self._dataset = dataset
        self._reporter = reporter
        self._exchange = Exchange(parts.world.evaluation)
        self._sparse = parts.sparse_role(self._exchange, ring=_RING)
        self._dense = parts.dense_role(self._exchange, ring=_RING)
        self._order = parts.order(dataset, train=False)
        once = parts.job.train.model_copy(update={"epochs": 1, "steps": None})
        self._steps = Steps(self._order, once)

    def evaluate(self) -> dict[str, float]:
        """Exact quality over all samples, the same on every rank."""
        columns = self.scores()
        found = None
        if columns is not None:
            is_logit = self._parts.model.score_is_logit
            found = quality(columns, is_logit=is_logit) | {"samples": float(len(columns[0]))}
        result: dict[str, float] = self._parts.world.control.bcast(found, root=self._reporter)
        return result

    def scores(self) -> list[np.ndarray] | None:
        """Scores, labels, weights and sample ids in sample order, on the reporter."""
        scored = self._pass()
        gathered = self._parts.world.control.gather(scored.columns(), root=self._reporter)
        if gathered is None:
            return None
        columns = join_columns(gathered)
        order = np.argsort(columns[3], kind="stable")
        return [column[order] for column in columns]

    def _pass(self) -> Scored:
        scored = Scored()
        readers: list[Reader | LookAhead] = []
        if self._sparse is not None:
            sparse = self._parts.sparse_reader(self._dataset, self._order, self._steps, 0)
            readers.append(sparse)
        if self._dense is not None:
            reads = self._dense.data_reads
            dense = self._parts.dense_reader(
                self._dataset, self._order, self._dense, self._steps, 0
            )
            readers.append(dense)
            self._dense.modules.set_training(False)
        for step in range(self._steps.total):
            if self._dense is not None:
                self._dense.expect_rows(step, self._steps.num_rows(step))
            if self._sparse is not None:
                self._sparse.evaluate(step, next(sparse))
            if self._dense is not None:
                feed = self._dense.feed(next(dense), reads)
                scored.add(self._dense.evaluate(step, feed), feed)
        self._exchange.settle_all()
        for reader in readers:
            reader.close()
        if self._dense is not None:
            self._dense.modules.set_training(True)
        return scored
