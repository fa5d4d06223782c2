"""The throughput of a run is that of its training, as plans predict it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.equivalence.cases import Case
from tests.faults.runs import make_run
from tests.mpi.conftest import OnRanks

pytestmark = pytest.mark.mpi(min_size=2)

PAUSE = 0.2  # seconds


def test_evaluations_and_saves_are_outside_of_it(
    data: Path, shared_path: Path, on_ranks: OnRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 saves for longer than the other one, which then waits for it."""
    from heterps_hpc.dataset import Dataset
    from heterps_hpc.runtime.evaluate import Evaluator
    from heterps_hpc.runtime.rank import Rank
    from heterps_hpc.runtime.state.saver import Saver
    from heterps_hpc.runtime.training import Training
    from heterps_hpc.runtime.votes import StopFlag

    pauses = {"evaluate": 0.0, "save": 0.0}

    def slow(kind: str, seconds: float, call: Any) -> Any:
        def sleep_first(*given: Any) -> Any:
            pauses[kind] += seconds
            time.sleep(seconds)
            return call(*given)

        return sleep_first

    def work(comm: Any) -> tuple[float, ...]:
        path = comm.bcast(shared_path / "run")
        case = Case("ctrdnn", "1+1", 2, 0, "float32", "evaluate")
        run = make_run(path, data, case, steps=9, every_steps=4, checkpoint={"at_end": False})
        longer = 2 if comm.rank == 0 else 1
        monkeypatch.setattr(Evaluator, "evaluate", slow("evaluate", PAUSE, Evaluator.evaluate))
        monkeypatch.setattr(Rank, "capture", slow("save", longer * PAUSE, Rank.capture))
        rank = Rank(comm, run.job, run.layout, Dataset.open(run.job.data.train))
        training = Training(rank, run.directory, saver=Saver(rank, run.directory, StopFlag()))
        result = training.run()
        training.close()
        rank.close()
        lines = [json.loads(line) for line in run.directory.metrics.read_text().splitlines()]
        noted = sum(line["seconds"] for line in lines if line["kind"] == "train")
        outside = result.seconds - result.samples / result.samples_per_second
        too_much = noted - result.training_seconds
        return result.samples_per_second, outside, too_much, pauses["evaluate"], pauses["save"]

    (rate, outside, _, evaluating, saving), second = on_ranks(2, work)
    assert evaluating == pytest.approx(3 * PAUSE)
    assert saving >= 2 * PAUSE
    assert outside > evaluating + saving
    assert rate == second[0]
    assert second[2] < PAUSE / 2  # the metrics are of the rank that reports
