"""Following a job through what can happen to it; Slurm itself is played by a list of states."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from heterps_hpc import events
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import LaunchRequest, Listener
from heterps_hpc.launch.restart_policy import run_with_restarts
from heterps_hpc.launch.slurm import launcher
from heterps_hpc.launch.slurm.job_state import ComponentState, JobState
from heterps_hpc.layout import Layout
from heterps_hpc.rundir import RunDir
from tests.launch.values import make_cluster, make_job, make_layout


def states(*components: str, restarts: int = 0) -> JobState:
    return JobState(
        tuple(
            ComponentState(i, 7 + i, state, 0, 0, restarts, "None", "p", "n")
            for i, state in enumerate(components)
        )
    )


RUNNING = states("RUNNING", "RUNNING")
QUEUED_AGAIN = states("PENDING", "PENDING", restarts=1)
TORN = JobState(
    (states("PENDING", restarts=1).components[0], states("RUNNING", "RUNNING").components[1])
)
CANCELLED = states("CANCELLED", "CANCELLED")
DONE = states("COMPLETED", "COMPLETED")
DONE_ON_ONE_POOL = states("COMPLETED")
SMALLER = make_layout(make_cluster(), ("gpu", 1))


class FakeSlurm:
    """Gives one state per question and notes the commands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run: RunDir) -> None:
        self.script: Iterator[JobState | UserError] = iter(())
        self.commands: list[tuple[str, ...]] = []
        self.run = run
        self.num_jobs = 0
        monkeypatch.setattr(launcher, "state", self._state)
        monkeypatch.setattr(launcher, "call", self._call)
        monkeypatch.setattr(launcher, "_RETRY_SECONDS", 0.0)
        monkeypatch.setattr(launcher, "refuse_second_job", lambda run: None)
        cluster = make_cluster()
        layout = make_layout(cluster, ("cpu", 1), ("gpu", 1))
        self.request = LaunchRequest(run, layout, make_job(max_restarts=1), cluster)
        self.nodes = {"cpu": 2, "gpu": 2}

    def _state(self, job_id: int) -> JobState:
        now = next(self.script)
        if isinstance(now, UserError):
            raise now
        if now == DONE:
            events.record(self.run, events.RanksDone(num_ranks=2))
        return now

    def _call(self, *command: str, cwd: Path | None = None) -> str:
        if command[0] == "sinfo":
            return str(self.nodes[command[2].removeprefix("--partition=")])
        if command[1] == "--test-only":
            return ""
        if command[0] == "sbatch":
            self.num_jobs += 1
            events.record(self.run, events.Started())
            return f"{5 + 2 * self.num_jobs}\n"
        self.commands.append(command)
        return ""

    def wait(self, *script: JobState | UserError) -> ExitCode:
        """One job, followed to its end."""
        self.script = iter(script)
        return launcher.SlurmLauncher("mpich", poll_seconds=0.0).start(self.request)

    def launch(self, *script: JobState | UserError) -> ExitCode:
        """As many jobs as the restart policy allows."""
        self.script = iter(script)
        slurm = launcher.SlurmLauncher("mpich", poll_seconds=0.0)
        return run_with_restarts(slurm, self.request, Listener(), lambda cluster: SMALLER)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    run = RunDir(tmp_path).create()
    make_job(max_restarts=1).save(run.job)
    return FakeSlurm(monkeypatch, run)


def test_requeue_is_not_an_end(fake: FakeSlurm) -> None:
    assert fake.wait(RUNNING, QUEUED_AGAIN, RUNNING, DONE) == ExitCode.DONE
    assert fake.commands == []


def test_torn_job_is_ended_and_submitted_again(fake: FakeSlurm) -> None:
    assert fake.launch(RUNNING, TORN, CANCELLED, RUNNING, DONE) == ExitCode.DONE
    assert fake.commands == [("scancel", "7")]
    assert fake.num_jobs == 2


def test_failures_end_after_one_restart_however_they_are_made(fake: FakeSlurm) -> None:
    """max_restarts is 1: a second torn job is not submitted a third time."""
    assert fake.launch(TORN, CANCELLED, TORN, CANCELLED) == ExitCode.RANK_FAILED
    assert fake.num_jobs == 2
    assert "--no-requeue" in fake.run.script.read_text()  # the last start that was left


def test_users_scancel_is_not_undone(fake: FakeSlurm) -> None:
    assert fake.launch(RUNNING, CANCELLED) == ExitCode.STOPPED
    assert fake.num_jobs == 1


def test_torn_job_whose_nodes_are_gone_is_planned_again(fake: FakeSlurm) -> None:
    fake.nodes = {"cpu": 0, "gpu": 2}
    assert fake.launch(TORN, CANCELLED, DONE_ON_ONE_POOL) == ExitCode.RANK_FAILED
    planned = events.read(fake.run).last(events.PlannedAgain)
    assert planned is not None
    assert planned.capacity == {"cpu": 0, "gpu": 4}
    assert Layout.load(fake.run.layout) == SMALLER


def test_requeued_job_whose_nodes_are_gone_is_ended(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_REQUEUE_SECONDS", 0.0)
    fake.nodes = {"cpu": 0, "gpu": 2}
    code = fake.wait(QUEUED_AGAIN, QUEUED_AGAIN, CANCELLED)
    assert code == ExitCode.RANK_FAILED
    assert fake.commands == [("scancel", "7")]


def test_requeued_job_that_fits_may_wait(fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_REQUEUE_SECONDS", 0.0)
    assert fake.wait(QUEUED_AGAIN, QUEUED_AGAIN, QUEUED_AGAIN, DONE) == ExitCode.DONE
    assert fake.commands == []


def test_silent_controller_is_borne(fake: FakeSlurm) -> None:
    assert fake.wait(RUNNING, UserError("no answer"), RUNNING, DONE) == ExitCode.DONE


def test_controller_that_stays_silent_is_not(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_SILENCE_SECONDS", -1.0)
    with pytest.raises(UserError, match="no answer"):
        fake.wait(RUNNING, UserError("no answer"))


def test_cancelled_by_the_user_is_stopped(fake: FakeSlurm) -> None:
    assert fake.wait(RUNNING, CANCELLED) == ExitCode.STOPPED
