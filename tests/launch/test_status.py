"""Where a run stands, told from its files alone; and why it failed."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from heterps_hpc import history
from heterps_hpc.commands.launch import refuse_mixing
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.failure import explain
from heterps_hpc.launch.status import read_status, show
from heterps_hpc.rundir import RunDir
from tests.launch.values import make_cluster, make_job, make_layout


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    directory = RunDir(tmp_path / "run").create()
    make_job().save(directory.job)
    make_layout(make_cluster(), ("cpu", 2), ("gpu", 1)).save(directory.layout)
    return directory


def test_planned_run(run: RunDir) -> None:
    assert read_status(run.path).summary == "planned, 3 ranks, not started"


def test_running_and_ended_run(run: RunDir) -> None:
    history.record(run, "start", launcher="mpirun", restart=0)
    assert read_status(run.path).summary.startswith("running for ")
    run.metrics.write_text(json.dumps({"kind": "train", "step": 7, "loss": 0.5}) + "\n")
    (run.checkpoints / "000000005").mkdir()
    history.record(run, "end", code=3)
    status = read_status(run.path)
    assert status.summary == "stopped after a checkpoint"
    assert status.checkpoints == (5,)
    assert status.metrics == {"kind": "train", "step": 7, "loss": 0.5}
    out = StringIO()
    show(run.path, Console(file=out, width=100))
    assert "step 7, loss 0.5" in out.getvalue()
    assert "step 5" in out.getvalue()


def test_failed_run_says_which_rank_and_why(run: RunDir) -> None:
    history.record(run, "start", launcher="mpirun")
    history.record(run, "rank_end", rank=2, code=4, reason="rank 2 dense: disk full")
    history.record(run, "rank_end", rank=0, code=4, reason="a consequence")
    history.record(run, "end", code=4)
    reason = read_status(run.path).reason or ""
    assert "rank 2 dense: disk full" in reason
    assert "rank-00002.log" in reason
    assert "consequence" not in reason


def test_silent_failure_gives_the_launchers_last_words(run: RunDir) -> None:
    history.record(run, "start", launcher="mpirun")
    (run.logs / "launcher.log").write_text("=====\nmpirun: no such host\n")
    assert "mpirun: no such host" in (explain(run, ExitCode.RANK_FAILED) or "")
    assert explain(run, ExitCode.DONE) is None


def test_other_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run directory"):
        read_status(tmp_path)


def test_going_on_by_mistake_is_refused(run: RunDir) -> None:
    refuse_mixing(run, resume=False)
    (run.checkpoints / "000000005").mkdir()
    with pytest.raises(UserError, match="checkpoint of step 5; go on from it with --resume"):
        refuse_mixing(run, resume=False)
    refuse_mixing(run, resume=True)
