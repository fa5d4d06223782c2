"""Where a run stands, from its files alone; and why it failed."""

import json
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from heterps_hpc import events, run_lock
from heterps_hpc.commands.prepare import refuse_mixing
from heterps_hpc.errors import UserError
from heterps_hpc.events import (
    Ended,
    Event,
    Launched,
    RankEnded,
    Stalled,
    Started,
    StopWanted,
    Submitted,
)
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.heartbeats import Beat, NodeBeats
from heterps_hpc.launch.failure import explain, mark_start
from heterps_hpc.launch.status import read_status, resume_command, show
from heterps_hpc.run_lock import RunLock
from heterps_hpc.rundir import RunDir
from tests.launch.values import make_cluster, make_job, make_layout


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    directory = RunDir(tmp_path / "run").create()
    make_job().save(directory.job)
    make_layout(make_cluster(), ("cpu", 2), ("gpu", 1)).save(directory.layout)
    return directory


def test_planned_run(run: RunDir) -> None:
    assert read_status(run.path).summary == "planned, not started, 3 ranks"
    with RunLock(run):
        assert read_status(run.path).summary == "measuring or planning"


def test_running_and_ended_run(run: RunDir) -> None:
    events.record(run, Started(launcher="mpirun"))
    with RunLock(run):
        assert read_status(run.path).summary.startswith("running for ")
    run.metrics.write_text(json.dumps({"kind": "train", "step": 7, "loss": 0.5}) + "\n")
    save(run, 5)
    events.record(run, Ended(code=3))
    status = read_status(run.path)
    assert status.summary == "stopped after a checkpoint"
    assert status.checkpoints == (5,)
    out = StringIO()
    show(run.path, Console(file=out, width=100))
    assert "loss 0.5000" in out.getvalue()
    assert "checkpoints after step 5" in out.getvalue()
    out = StringIO()
    show(run.path, Console(file=out, width=40), as_json=True)
    found = json.loads(out.getvalue())
    assert found["summary"] == status.summary
    assert found["progress"]["loss"] == 0.5
    assert found["checkpoints"] == [5]


def test_failed_run_shows_which_rank_and_why(run: RunDir) -> None:
    events.record(run, Started(launcher="mpirun"))
    events.record(run, RankEnded(rank=2, code=4, reason="rank 2 dense: disk full"))
    events.record(run, RankEnded(rank=0, code=4, reason="a consequence"))
    events.record(run, Ended(code=4))
    reason = read_status(run.path).reason or ""
    assert reason.startswith("rank 2 dense: disk full\n")  # and the rank is named once
    assert "rank-00002.log" in reason
    assert "consequence" not in reason


def test_silent_failure_shows_the_launchers_last_output(run: RunDir) -> None:
    events.record(run, Started(launcher="mpirun"))
    (run.logs / "launcher.log").write_text("=====\nmpirun: no such host\nso we end\n")
    first, *rest = (explain(run, ExitCode.RANK_FAILED) or "").splitlines()
    assert first == "no rank reported why it ended; the launcher printed: mpirun: no such host"
    assert "  so we end" in rest
    assert explain(run, ExitCode.DONE) is None


def test_what_an_earlier_start_printed_is_not_the_reason_of_the_newest(run: RunDir) -> None:
    for text in ("mpirun: no such host\n", ""):
        events.record(run, Started(launcher="mpirun"))
        mark_start(run)
        with run.launcher_log.open("a") as file:
            file.write(text)
    reason = explain(run, ExitCode.RANK_FAILED) or ""
    assert reason.startswith("`heterps` itself was killed, or its machine stopped")
    assert "no such host" not in reason


def test_a_stall_names_the_rank_that_was_silent(run: RunDir) -> None:
    """Not the rank that noticed it first."""
    events.record(run, Started(launcher="mpirun"))
    events.record(run, Stalled(step=7, ranks=["rank 1 has been silent", "rank 0 waits"]))
    events.record(run, RankEnded(rank=0, code=ExitCode.STALLED))
    first, *_ = (explain(run, ExitCode.STALLED) or "").splitlines()
    assert first == "nothing moved any more: rank 1 has been silent"


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ([StopWanted(why="SIGTERM"), Ended(code=4, status=0)], "before they had saved and ended"),
        ([Ended(code=4, status=-9)], "mpirun was killed by signal 9, and its ranks ended with it"),
    ],
)
def test_what_happened_to_the_launcher_is_a_reason(
    run: RunDir, end: list[Event], reason: str
) -> None:
    events.record(run, Started(launcher="mpirun"))
    for event in end:
        events.record(run, event)
    assert reason in (explain(run, ExitCode.RANK_FAILED) or "").splitlines()[0]


def test_other_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run directory"):
        read_status(tmp_path)


def save(run: RunDir, step: int) -> None:
    folder = run.checkpoints / f"{step:09d}"
    folder.mkdir()
    (folder / "manifest.json").touch()


def test_resuming_by_mistake_is_refused(run: RunDir) -> None:
    refuse_mixing(run, resume=False)
    save(run, 5)
    with pytest.raises(UserError, match="checkpoint of step 5; continue from it with --resume"):
        refuse_mixing(run, resume=False)
    refuse_mixing(run, resume=True)


def test_an_incomplete_checkpoint_is_not_a_checkpoint(run: RunDir) -> None:
    """A run killed in its first save has nothing to resume; a backup by hand is not ours."""
    (run.checkpoints / "000000005").mkdir()
    (run.checkpoints / "000000002.bak").mkdir()
    (run.checkpoints / "000000002.bak" / "manifest.json").touch()
    refuse_mixing(run, resume=False)
    events.record(run, Started(launcher="mpirun"))
    events.record(run, Ended(code=3))
    status = read_status(run.path)
    assert status.checkpoints == ()
    assert status.summary == "stopped before any checkpoint"


def test_a_run_whose_launcher_was_killed_has_ended(run: RunDir) -> None:
    """Nobody could record the end: what ranks noted counts, and nobody is left."""
    events.record(run, Started(launcher="mpirun"))
    assert read_status(run.path).summary == "failed"
    rank = run_lock.join(run)
    assert read_status(run.path).summary.startswith("running for ")
    assert rank is not None
    rank.close()
    save(run, 7)
    events.record(run, RankEnded(rank=0, code=3))
    assert read_status(run.path).summary == "stopped after a checkpoint"


def test_ranks_that_someone_else_started_are_seen(run: RunDir) -> None:
    now = time.time()
    beat = Beat(rank=0, role="sparse", stage=0, host="n", pid=1, step=2, phase="pull",
                at=now, since=now)  # fmt: skip
    node = NodeBeats(node="n", written_at=now, every_seconds=5.0, beats=(beat,))
    node.save(run.heartbeats / "n.json")
    status = read_status(run.path)
    assert status.summary == "running"
    assert len(status.ranks) == 1
    later = node.model_copy(update={"beats": (beat.model_copy(update={"at": now + 9999.0}),)})
    later.save(run.heartbeats / "n.json")
    assert read_status(run.path).summary != "running"  # the clock was set back since
    events.record(run, Started(launcher="srun"))
    events.record(run, Ended(code=3))
    assert read_status(run.path).ranks == ()  # they do not wait any more


def test_the_way_to_continue_is_where_it_ran(run: RunDir) -> None:
    events.record(run, Launched(on="slurm"))
    events.record(run, Submitted(job_id=7))
    events.record(run, Started(launcher="srun", job_id=7))
    assert resume_command(run) == f"heterps launch --resume --on slurm {run.path}"
    events.record(run, Launched(on="local"))
    events.record(run, Started(launcher="mpirun"))
    assert resume_command(run) == f"heterps launch --resume {run.path}"


def test_ranks_started_by_hand_record_their_own_end(run: RunDir) -> None:
    """`mpirun … python -m heterps_hpc.runtime RUN`: nobody records a start or an end for them."""
    now = time.time()
    beat = Beat(rank=0, role="sparse", stage=0, host="n", pid=1, step=2, phase="pull",
                at=now, since=now)  # fmt: skip
    NodeBeats(node="n", written_at=now, every_seconds=5.0, beats=(beat,)).save(
        run.heartbeats / "n.json"
    )
    assert read_status(run.path).summary == "running"
    events.record(run, RankEnded(rank=0, code=3))
    status = read_status(run.path)
    assert status.summary == "stopped before any checkpoint"  # not running, not planned
    assert status.ranks == ()
