"""Restarts continue from checkpoints, on a new layout when nodes are gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from heterps_hpc import events
from heterps_hpc.checkpoint.store import steps_of
from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.config import Job, LaunchSpec
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import Capacity, LaunchRequest, Listener
from heterps_hpc.launch.local import LocalLauncher
from heterps_hpc.launch.restart_policy import fits, run_with_restarts, smaller
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir
from tests.faults.conftest import CASE
from tests.faults.runs import FAULTY_PROGRAM, Learned, different_numbers, make_run
from tests.launch.values import make_job

CLUSTER = Cluster(
    pools=tuple(
        Pool(name=name, price_per_hour=1.0, max_ranks=8, cores_per_node=8)
        for name in ("cpu", "gpu")
    )
)
FULL = {"cpu": 8, "gpu": 8}


class PlayedLauncher(LocalLauncher):
    """Starts by a function, on nodes that the test decides about."""

    def __init__(self, start: Callable[[Layout], ExitCode], capacity: Capacity = FULL) -> None:
        super().__init__()
        self._start = start
        self._capacity = capacity

    def start(self, request: LaunchRequest, listener: Listener | None = None) -> ExitCode:
        return self._start(request.layout)

    def capacity(self, cluster: Cluster, job: Job) -> Capacity:
        return self._capacity


@pytest.fixture
def layout(data: Path, tmp_path: Path) -> Layout:
    return make_run(tmp_path / "planned", data, CASE).layout


def test_only_failures_are_tried_again_and_not_forever(layout: Layout, tmp_path: Path) -> None:
    run = RunDir(tmp_path).create()
    request = LaunchRequest(run, layout, make_job(max_restarts=2), CLUSTER)

    def codes(*given: ExitCode, stop: bool = False) -> tuple[ExitCode, int]:
        waiting = list(given)
        events.record(run, events.Launched())
        if stop:
            events.record(run, events.StopWanted(why="SIGTERM"))
        code = run_with_restarts(
            PlayedLauncher(lambda layout: waiting.pop(0)),
            request,
            Listener(),
            plan=lambda cluster: pytest.fail("nothing has changed: no new plan"),
        )
        return code, len(given) - len(waiting)

    failed, stalled = ExitCode.RANK_FAILED, ExitCode.STALLED
    assert codes(ExitCode.DONE) == (ExitCode.DONE, 1)
    assert codes(failed, stalled, ExitCode.DONE) == (ExitCode.DONE, 3)
    assert codes(failed, failed, failed, ExitCode.DONE) == (failed, 3)
    assert codes(ExitCode.STOPPED, ExitCode.DONE, stop=True) == (ExitCode.STOPPED, 1)
    assert codes(ExitCode.USER_ERROR, ExitCode.DONE) == (ExitCode.USER_ERROR, 1)


def test_capacity_is_compared_pool_by_pool(layout: Layout) -> None:
    assert fits(layout, {"cpu": 2, "gpu": 1})
    assert not fits(layout, {"cpu": 1, "gpu": 8})
    assert not fits(layout, {"cpu": 8})
    assert [p.rank_limit for p in smaller(CLUSTER, {"cpu": 3, "gpu": 0}).pools] == [3]
    with pytest.raises(UserError, match="no pool of cluster 'cluster' has a node left"):
        smaller(CLUSTER, {})


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fewer_nodes_mean_another_layout_and_the_same_result(
    data: Path, undisturbed: Learned, tmp_path: Path
) -> None:
    """A rank is killed, its node is gone: the rest continues as one rank per pool."""
    run = make_run(tmp_path, data, CASE)
    left = {"cpu": 1, "gpu": 1}
    fault = {"rank": 1, "at": "step", "count": 9, "do": "kill"}
    seen: list[int] = []

    def start(layout: Layout) -> ExitCode:
        seen.append(layout.num_ranks)
        run.layout = layout
        first = len(seen) == 1
        outcome = run.start(
            environment={"HETERPS_FAULT": json.dumps(fault if first else {})},
            program=FAULTY_PROGRAM,
        )
        return ExitCode.RANK_FAILED if outcome.returncode else ExitCode.DONE

    job = run.job.model_copy(update={"launch": LaunchSpec(max_restarts=1)})
    code = run_with_restarts(
        PlayedLauncher(start, left),
        LaunchRequest(run.directory, run.layout, job, CLUSTER),
        Listener(),
        plan=lambda cluster: make_run(tmp_path / "small", data, CASE, "1+1").layout,
    )
    assert code == ExitCode.DONE
    assert seen == [3, 2]
    assert steps_of(run.directory.checkpoints)[-1] == 12
    planned = events.read(run.directory).last(events.PlannedAgain)
    assert planned is not None
    assert planned.capacity == left
    assert different_numbers(run.learned(), undisturbed, 1e-5) == []
