"""What a run reports while it trains: losses and scores, gathered and written at intervals."""

from __future__ import annotations

import json
import logging
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.model import LOSS, SCORE
from heterps_hpc.runtime.batches import Feed
from heterps_hpc.runtime.dense import BatchResult
from heterps_hpc.runtime.metrics.quality import auc, log_loss, normalised_entropy
from heterps_hpc.runtime.metrics.scored import join_columns
from heterps_hpc.runtime.rank import Rank

log = logging.getLogger(__name__)


def quality(columns: list[np.ndarray], *, is_logit: bool) -> dict[str, float]:
    """AUC, and for logits log loss and normalised entropy; what has no value is left out."""
    scores, labels, weights = columns[:3]
    found = {"auc": auc(scores, labels, weights)}
    if is_logit:
        found["log_loss"] = log_loss(scores, labels, weights)
        found["normalised_entropy"] = normalised_entropy(scores, labels, weights)
    return {name: value for name, value in found.items() if math.isfinite(value)}


class TrainingLog:
    """Collects on every dense rank; one of them, the reporter, writes."""

    def __init__(self, rank: Rank, metrics_path: Path | None) -> None:
        self._rank = rank
        self._path = metrics_path
        self._comm = rank.world.dense
        dense = [entry.rank for entry in rank.world.layout.ranks if entry.dense]
        self._root = dense.index(rank.reporter)  # the reporter among the dense ranks
        self._writes_loss = rank.writes(LOSS)
        self.keeps_scores = rank.writes(SCORE)
        self._since = time.perf_counter()
        self._written: set[tuple[str, int]] = set()  # lines of this very step
        if self._path is not None and rank.is_reporter:
            self._continue_file(self._path)

    def pause_clock(self) -> None:
        """Count the time until now as training."""
        now = time.perf_counter()
        self._rank.losses.seconds += now - self._since
        self._since = now

    def restart_clock(self) -> None:
        """Do not count the time until now as training."""
        self._since = time.perf_counter()

    def note(self, outcome: BatchResult, feed: Feed, weight_sum: float) -> None:
        """Keep what one batch gave."""
        self._rank.losses.samples += feed.batch.num_rows
        if self._writes_loss:
            self._rank.losses.sums.append((outcome, weight_sum))
        self._rank.scored.add(outcome, feed)

    def report(self, step: int, epoch: int) -> None:
        """Gather, write one line, start again. Called by all dense ranks at the same step."""
        losses = self._rank.losses
        sums = losses.known_sums()
        gathered = self._comm.gather((sums, self._rank.scored.columns()), root=self._root)
        self.pause_clock()
        samples, seconds = losses.samples, losses.seconds
        losses.sums, losses.samples, losses.seconds = [], 0, 0.0
        self._rank.scored.clear()
        if gathered is None or samples == 0:
            return
        means = _step_losses([sums for sums, _ in gathered if sums])
        losses.reported += means
        finite = [loss for loss in means if math.isfinite(loss)]  # others were skipped
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
        line |= quality(columns, is_logit=self._rank.model.score_is_logit)
        self.write(line)

    def _continue_file(self, path: Path) -> None:
        """Drop what an interrupted run wrote of steps that will be done again, so that the file
        always reads as that of one run."""
        if not path.exists():
            return
        step = self._rank.step
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        kept = [line for line in lines if _step_of(line) <= step]
        if len(kept) != len(lines):
            write_atomically(path, "".join(kept))
        last = [json.loads(line) for line in kept if _step_of(line) == step]
        self._written = {(str(line.get("kind")), step) for line in last}

    def write(self, line: dict[str, Any]) -> None:
        """Append one JSON line, and log it; what the file says of this step already is not
        written twice."""
        if self._path is not None and (line["kind"], line["step"]) not in self._written:
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
        return float(json.loads(line)["step"]) if line.endswith("\n") else math.inf
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return math.inf  # a line that was cut short, or is not ours


def _step_losses(per_rank: list[list[tuple[float, float]]]) -> list[float]:
    """Loss of each step: sums of all ranks over the batch's weight."""
    losses = []
    for step in zip(*per_rank, strict=True):
        losses.append(sum(loss for loss, _ in step) / step[0][1])
    return losses
