"""Following a job through what can happen to it; Slurm itself is played by a list of states."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from heterps_hpc import events
from heterps_hpc.commands.launch import start
from heterps_hpc.config import TrainSpec
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.launcher import BetterLayout, LaunchRequest, Listener, Replanner
from heterps_hpc.launch.restart_policy import run_with_restarts
from heterps_hpc.launch.slurm import launcher
from heterps_hpc.launch.slurm.epilogue import conclude
from heterps_hpc.launch.slurm.job_state import ComponentState, JobState
from heterps_hpc.launch.slurm.slurm_cli import SlurmRefusal
from heterps_hpc.launch.stop_requests import StopRequested
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
        self.script: Iterator[JobState | BaseException] = iter(())
        self.commands: list[tuple[str, ...]] = []
        self.refusals: list[UserError] = []
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
        if isinstance(now, BaseException):
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
        if self.refusals:
            raise self.refusals.pop()
        return ""

    def wait(self, *script: JobState | BaseException) -> ExitCode:
        """One job, followed to its end."""
        self.script = iter(script)
        return launcher.SlurmLauncher("mpich", poll_seconds=0.0).start(self.request)

    def launch(
        self, *script: JobState | BaseException, replanner: Replanner | None = None
    ) -> ExitCode:
        """As many jobs as the restart policy allows."""
        return self.play(iter(script), replanner or Replanner())

    def play(self, script: Iterator[JobState | BaseException], replanner: Replanner) -> ExitCode:
        """The same, by states that are made as they are asked for."""
        self.script = script
        slurm = launcher.SlurmLauncher("mpich", poll_seconds=0.0)
        listener = Listener(replanner=replanner)
        return run_with_restarts(slurm, self.request, listener, lambda cluster: SMALLER)


class FoundCheaper(Replanner):
    """Has found a cheaper layout, once."""

    def __init__(self, *, while_running: bool) -> None:
        self.wants = while_running
        self.taken = 0

    def poll(self) -> bool:
        wants, self.wants = self.wants, False
        return wants

    def better(self) -> BetterLayout | None:
        return None if self.taken else BetterLayout(SMALLER, 0.2, self.take)

    def take(self) -> None:
        self.taken += 1


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    run = RunDir(tmp_path).create()
    make_job(max_restarts=1).save(run.job)
    return FakeSlurm(monkeypatch, run)


def test_a_job_that_slurm_refuses_has_not_been_launched(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*command: str, cwd: Path | None = None) -> str:
        raise SlurmRefusal(command[0], "invalid account")

    monkeypatch.setattr(launcher, "call", refuse)
    train = TrainSpec.parse({"batch_size": 64, "tables": {"num_partitions": 8}}, "test")
    job = fake.request.job.model_copy(update={"train": train})
    for wait in (True, False):
        with pytest.raises(UserError, match="invalid account"):
            start(launcher.SlurmLauncher("mpich"), replace(fake.request, job=job), wait=wait)
    assert not events.read(fake.run).was_launched


def test_who_stops_waiting_is_told_that_the_job_continues(fake: FakeSlurm) -> None:
    stop = StopRequested("stopped by SIGINT")
    with pytest.raises(StopRequested, match=r"by SIGINT, but job 7 continues: .*heterps cancel"):
        fake.wait(RUNNING, stop)
    assert fake.commands == []


def test_requeue_is_not_an_end(fake: FakeSlurm) -> None:
    assert fake.wait(RUNNING, QUEUED_AGAIN, RUNNING, DONE) == ExitCode.DONE
    assert fake.commands == []


def test_torn_job_is_ended_and_submitted_again(fake: FakeSlurm) -> None:
    assert fake.launch(RUNNING, TORN, CANCELLED, RUNNING, DONE) == ExitCode.DONE
    assert fake.commands == [("scancel", "7")]
    assert fake.num_jobs == 2


def test_a_torn_job_is_ended_once_though_that_takes_a_while(fake: FakeSlurm) -> None:
    fake.wait(RUNNING, TORN, TORN, TORN, CANCELLED)
    assert fake.commands == [("scancel", "7")]
    assert len(events.read(fake.run).of(events.Torn)) == 1


def test_a_refused_command_does_not_end_the_waiting(fake: FakeSlurm) -> None:
    fake.refusals.append(UserError("scancel did not answer within 60 s"))
    assert fake.launch(TORN, TORN, TORN, CANCELLED, RUNNING, DONE) == ExitCode.DONE
    assert fake.commands == [("scancel", "7"), ("scancel", "7")]


def test_failures_end_after_one_restart_however_they_are_made(fake: FakeSlurm) -> None:
    """max_restarts is 1: a second torn job is not submitted a third time."""
    assert fake.launch(TORN, CANCELLED, TORN, CANCELLED) == ExitCode.RANK_FAILED
    assert fake.num_jobs == 2
    assert "--no-requeue" in fake.run.script.read_text()  # the last start that was left


def test_users_scancel_is_not_undone(fake: FakeSlurm) -> None:
    assert fake.launch(RUNNING, CANCELLED) == ExitCode.STOPPED
    assert fake.num_jobs == 1


def test_a_cheaper_layout_ends_the_job_after_a_checkpoint_and_another_takes_its_place(
    fake: FakeSlurm,
) -> None:
    """The start that ended for it is no restart: the one that is allowed is left."""
    found = FoundCheaper(while_running=True)

    def ended() -> Iterator[JobState]:
        yield from (RUNNING, RUNNING)
        assert fake.commands == [("scancel", "--signal=USR1", "7")]
        events.record(fake.run, events.RankEnded(rank=0, code=3))
        assert conclude(fake.run, 3, 2) == "end 3"  # no requeue: the layout is another one
        yield states("FAILED", "FAILED")
        assert "--no-requeue" not in fake.run.script.read_text()
        events.record(fake.run, events.RanksDone(num_ranks=1))
        yield DONE_ON_ONE_POOL

    assert fake.play(ended(), found) == ExitCode.DONE
    assert (fake.num_jobs, found.taken) == (2, 1)
    assert Layout.load(fake.run.layout) == SMALLER
    planned = events.read(fake.run).last(events.PlannedAgain)
    assert planned is not None
    assert (planned.ranks, planned.saving) == ({"gpu": 1}, 0.2)


def test_at_a_requeue_a_cheaper_layout_takes_the_jobs_place(fake: FakeSlurm) -> None:
    found = FoundCheaper(while_running=False)
    code = fake.launch(
        RUNNING, QUEUED_AGAIN, QUEUED_AGAIN, CANCELLED, DONE_ON_ONE_POOL, replanner=found
    )
    assert fake.commands == [("scancel", "7")]
    assert (fake.num_jobs, found.taken) == (2, 1)
    assert not events.read(fake.run).stop_wanted
    assert code == ExitCode.RANK_FAILED  # no rank of the second job noted its end


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
