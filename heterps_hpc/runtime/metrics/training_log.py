"""What a run tells while it trains: losses and scores, gathered seldom and written as lines."""

from __future__ import annotations

import json
import logging
import math
import time
from pathlib import Path
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.model import LOSS, SCORE
from heterps_hpc.runtime.batches import Feed
from heterps_hpc.runtime.dense import BatchResult
from heterps_hpc.runtime.device import HostCopy
from heterps_hpc.runtime.metrics.quality import auc, log_loss, normalised_entropy
from heterps_hpc.runtime.parts import Parts
from heterps_hpc.validation import write_atomically

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]


class Scored:
    """Scores with their labels and weights, as one rank collects them."""

    def __init__(self) -> None:
        self._blocks: list[tuple[list[HostCopy], Floats, Floats, NDArray[np.int64]]] = []

    def add(self, outcome: BatchResult, feed: Feed) -> None:
        """Keep the scores of one batch."""
        if not outcome.scores:
            return
        batch = feed.batch
        assert batch.labels is not None
        weight = np.ones(len(batch.sample_ids)) if batch.weight is None else batch.weight
        self._blocks.append(
            (
                outcome.scores,  # perhaps still on a device: nobody waits for them here
                batch.labels[:, 0].astype(np.float64),
                weight.astype(np.float64),
                batch.sample_ids,
            )
        )

    def columns(self) -> list[np.ndarray]:
        """Scores, labels, weights and sample ids of all that was kept."""
        if not self._blocks:
            return [np.empty(0), np.empty(0), np.empty(0), np.empty(0, np.int64)]
        scores, *others = zip(*self._blocks, strict=True)
        values = [copy.tensor().numpy().astype(np.float64) for block in scores for copy in block]
        return [np.concatenate(column) for column in (values, *others)]

    def clear(self) -> None:
        """Forget."""
        self._blocks.clear()


def join_columns(gathered: list[list[np.ndarray]]) -> list[np.ndarray]:
    """The columns of all ranks end to end."""
    return [np.concatenate(column) for column in zip(*gathered, strict=True)]


def quality(columns: list[np.ndarray], *, is_logit: bool) -> dict[str, float]:
    """AUC, and for logits log loss and normalised entropy; what cannot be said is left out."""
    scores, labels, weights = columns[:3]
    found = {"auc": auc(scores, labels, weights)}
    if is_logit:
        found["log_loss"] = log_loss(scores, labels, weights)
        found["normalised_entropy"] = normalised_entropy(scores, labels, weights)
    return {name: value for name, value in found.items() if math.isfinite(value)}


class Progress:
    """Collects on every dense rank; one of them, the reporter, writes."""

    def __init__(self, parts: Parts, metrics_path: Path | None) -> None:
        self._parts = parts
        self._path = metrics_path
        self._comm = parts.world.dense
        entries = [entry for entry in parts.world.layout.ranks if entry.dense]
        loss_layer = next(layer for layer in parts.model.layers if LOSS in layer.writes)
        loss_stage = parts.world.layout.stage_of_layer(loss_layer.name)
        self._reporter = next(i for i, entry in enumerate(entries) if entry.stage == loss_stage)
        self._writes_loss = parts.writes(LOSS)
        self.keeps_scores = parts.writes(SCORE)
        self._sums: list[
            tuple[SupportsFloat, float]
        ] = []  # this rank's loss sum and the batch's weight
        self._scored = Scored()
        self.losses: list[float] = []  # of every step, on the reporter
        self._samples = 0
        self._since = time.perf_counter()

    @property
    def reporter(self) -> int:
        """The reporter's rank in the world."""
        entries = [entry.rank for entry in self._parts.world.layout.ranks if entry.dense]
        return entries[self._reporter]

    @property
    def is_reporter(self) -> bool:
        """Whether this rank writes."""
        return self._parts.world.rank == self.reporter

    def restart_clock(self) -> None:
        """Do not count the time until now as training."""
        self._since = time.perf_counter()

    def note(self, outcome: BatchResult, feed: Feed, weight_sum: float) -> None:
        """Keep what one batch gave."""
        self._samples += feed.batch.num_rows
        if self._writes_loss:
            self._sums.append((outcome, weight_sum))
        self._scored.add(outcome, feed)

    def report(self, step: int, epoch: int) -> None:
        """Gather, write one line, start anew. Called by all dense ranks at the same step."""
        sums = [(float(loss), weight) for loss, weight in self._sums]
        gathered = self._comm.gather((sums, self._scored.columns()), root=self._reporter)
        samples, self._samples = self._samples, 0
        self._sums = []
        self._scored.clear()
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        if gathered is None or samples == 0:
            return
        losses = _step_losses([sums for sums, _ in gathered if sums])
        self.losses += losses
        finite = [loss for loss in losses if math.isfinite(loss)]  # others were skipped
        line: dict[str, Any] = {
            "kind": "train",
            "step": step,
            "epoch": epoch,
            "samples": samples,
            "seconds": round(seconds, 6),
            "loss": float(np.mean(finite)) if finite else None,
            "samples_per_second": samples / max(seconds, 1e-9),
        }
        columns = join_columns([columns for _, columns in gathered])
        scored = np.isfinite(columns[0])
        columns = [column[scored] for column in columns]
        line |= quality(columns, is_logit=self._parts.model.score_is_logit)
        self.write(line)

    def saved(self) -> dict[str, Floats]:
        """What a checkpoint keeps: losses reported so far, and this rank's since then."""
        found: dict[str, Floats] = {}
        if self._writes_loss:
            found["sums"] = np.array(self._sums, np.float64).reshape(-1, 2)
        if self.is_reporter:
            found["losses"] = np.array(self.losses, np.float64)
        return found

    def restore(self, step: int, saved: dict[str, dict[int, Floats]]) -> None:
        """Go on from what a checkpoint kept, by world rank, whatever ranks there are now."""
        if self.is_reporter:
            self.losses = [loss for part in saved.get("losses", {}).values() for loss in part]
            self._forget_lines_after(step)
        sums = saved.get("sums", {})
        if not self._writes_loss or not sums:
            return
        world = self._parts.world
        ranks = world.layout.stage_ranks(world.entry.stage)
        if set(ranks) == set(sums):
            mine = sums[world.rank]
        else:  # the sums of all ranks are what counts: one rank takes them
            mine = next(iter(sums.values())).copy()
            mine[:, 0] = sum(part[:, 0] for part in sums.values()) if self.is_reporter else 0.0
        self._sums = [(float(loss), float(weight)) for loss, weight in mine]

    def _forget_lines_after(self, step: int) -> None:
        """Drop what an interrupted run wrote of steps that will be done again."""
        if self._path is None or not self._path.exists():
            return
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if _step_of(line) <= step]
        if len(kept) != len(lines):
            write_atomically(self._path, "".join(kept))

    def write(self, line: dict[str, Any]) -> None:
        """Append one JSON line and tell the log."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        numbers = " ".join(
            f"{name} {value:,.0f}" if name == "samples_per_second" else f"{name} {value:.4f}"
            for name, value in line.items()
            if isinstance(value, float) and name != "seconds"
        )
        log.info("%s step %d: %s", line["kind"], line["step"], numbers)


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf  # a line that was cut short


def _step_losses(per_rank: list[list[tuple[float, float]]]) -> list[float]:
    """Loss of each step: sums of all ranks over the batch's weight."""
    losses = []
    for step in zip(*per_rank, strict=True):
        losses.append(sum(loss for loss, _ in step) / step[0][1])
    return losses
