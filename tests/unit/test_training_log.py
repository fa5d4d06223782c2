"""metrics.jsonl reads as that of one run, whatever interrupted it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from heterps_hpc.model import LOSS
from heterps_hpc.runtime.dense import BatchResult
from heterps_hpc.runtime.device import HostCopy
from heterps_hpc.runtime.metrics.scored import Scored
from heterps_hpc.runtime.metrics.training_log import TrainingLog
from heterps_hpc.runtime.rank import LossRecord


def rank_at(step: int, losses: LossRecord | None = None) -> Any:
    """All that a log wants to know of a rank: it is alone, and sees losses but no scores."""
    return SimpleNamespace(
        step=step,
        losses=losses or LossRecord(),
        scored=Scored(),
        reporter=0,
        is_reporter=True,
        writes=lambda tensor: tensor == LOSS,
        model=SimpleNamespace(score_is_logit=True),
        world=SimpleNamespace(
            dense=SimpleNamespace(gather=lambda mine, root: [mine]),
            layout=SimpleNamespace(ranks=[SimpleNamespace(rank=0, dense=True)]),
        ),
    )


def train(progress: TrainingLog, rank: Any, last: int, every: int) -> None:
    feed: Any = SimpleNamespace(batch=SimpleNamespace(num_rows=10))
    while rank.step < last:
        progress.note(BatchResult(HostCopy(torch.tensor([float(rank.step)]))), feed, 1.0)
        rank.step += 1
        if rank.step % every == 0:
            progress.report(rank.step, 0)


def lines(path: Path) -> list[tuple[str, int]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["kind"], line["step"]) for line in found]


@pytest.mark.parametrize("resumed_at", [0, 3, 6])
@pytest.mark.parametrize(
    "rest", ['{"kind": "train", "st', f'{{"step": {10**400}}}\n', "[" * 9999 + "\n", "5\n[1]\n"]
)
def test_steps_that_are_done_again_are_written_once(
    tmp_path: Path, resumed_at: int, rest: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    killed = rank_at(0)
    train(TrainingLog(killed, path), killed, 7, every=1)
    with path.open("a") as file:
        file.write(rest)  # it was killed in the middle of a line, or someone else wrote
    again = rank_at(resumed_at)
    train(TrainingLog(again, path), again, 8, every=1)
    assert lines(path) == [("train", step) for step in range(1, 9)]


def test_the_evaluation_of_a_finished_run_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for _ in range(3):
        progress = TrainingLog(rank_at(12), path)
        progress.write({"kind": "evaluation", "step": 12, "auc": 0.7})
    assert lines(path) == [("evaluation", 12)]
    progress = TrainingLog(rank_at(12), path)
    progress.write({"kind": "evaluation", "step": 15, "auc": 0.8})  # it was extended
    assert lines(path) == [("evaluation", 12), ("evaluation", 15)]


def test_a_line_covers_all_its_steps_though_a_stop_lies_between(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    stopped = rank_at(0)
    progress = TrainingLog(stopped, path)
    train(progress, stopped, 6, every=4)
    progress.pause_clock()  # as before every save
    assert stopped.losses.seconds > 0
    kept = LossRecord(
        list(stopped.losses.reported),
        list(stopped.losses.sums),
        stopped.losses.samples,
        stopped.losses.seconds,
    )
    again = rank_at(6, kept)
    train(TrainingLog(again, path), again, 8, every=4)
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["step"], second["step"]) == (4, 8)
    assert second["samples"] == 40
    assert second["loss"] == pytest.approx(np.mean([4, 5, 6, 7]))
    assert second["seconds"] >= round(kept.seconds, 6) > 0 or kept.seconds == 0


def score(scored: Scored, first: int, last: int) -> None:
    """A batch of the samples `first` to `last`, in two micro-batches."""
    ids = np.arange(first, last)
    parts = [HostCopy(torch.tensor(part / 7)) for part in np.array_split(ids, 2)]
    batch = SimpleNamespace(sample_ids=ids, labels=(ids[:, None] % 2), weight=ids + 0.5)
    feed: Any = SimpleNamespace(batch=batch)
    scored.add(BatchResult(scores=parts), feed)


def test_a_resumed_run_scores_all_samples_since_the_last_line() -> None:
    whole, before, after = Scored(), Scored(), Scored()
    for scored in (whole, before):
        score(scored, 0, 5)
    after.take_up(before.columns())
    for scored in (whole, after):
        score(scored, 5, 9)
    for left, right in zip(whole.columns(), after.columns(), strict=True):
        assert left.dtype == right.dtype
        assert left.tolist() == right.tolist()
    after.clear()
    assert [len(column) for column in after.columns()] == [0, 0, 0, 0]
