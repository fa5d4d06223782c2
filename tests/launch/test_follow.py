"""Following a job through what can happen to it; Slurm itself is played by a list of states."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from heterps_hpc import history
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.slurm import follow
from heterps_hpc.launch.slurm.job_state import ComponentState, JobState
from heterps_hpc.rundir import RunDir
from tests.launch.values import make_job


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


class FakeSlurm:
    """Gives one state per question and notes the commands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run: RunDir) -> None:
        self.script: Iterator[JobState | UserError] = iter(())
        self.commands: list[tuple[str, ...]] = []
        self.run = run
        monkeypatch.setattr(follow, "state", self._state)
        monkeypatch.setattr(follow, "call", lambda *command: self.commands.append(command))
        monkeypatch.setattr(follow, "resubmit", self._resubmit)
        monkeypatch.setattr(follow, "_RETRY_SECONDS", 0.0)
        history.record(run, "submit", job_id=7)
        history.record(run, "start")

    def _state(self, job_id: int) -> JobState:
        now = next(self.script)
        if isinstance(now, UserError):
            raise now
        return now

    def _resubmit(self, run: RunDir) -> int:
        history.record(run, "resubmit", job_id=9)
        history.record(run, "start")
        return 9

    def wait(self, *script: JobState | UserError, fits: bool | None = None) -> ExitCode:
        self.script = iter(script)
        check = None if fits is None else lambda: fits
        return follow.wait(self.run.path, poll_seconds=0.0, fits=check)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    run = RunDir(tmp_path).create()
    make_job(max_restarts=1).save(run.job)
    return FakeSlurm(monkeypatch, run)


def test_requeue_is_not_an_end(fake: FakeSlurm) -> None:
    assert fake.wait(RUNNING, QUEUED_AGAIN, RUNNING, DONE) == ExitCode.DONE
    assert fake.commands == []


def test_torn_job_is_ended_and_submitted_again(fake: FakeSlurm) -> None:
    assert fake.wait(RUNNING, TORN, CANCELLED, RUNNING, DONE) == ExitCode.DONE
    assert fake.commands == [("scancel", "7")]


def test_torn_job_whose_nodes_are_gone_has_failed(fake: FakeSlurm) -> None:
    assert fake.wait(TORN, CANCELLED, fits=False) == ExitCode.RANK_FAILED


def test_requeued_job_whose_nodes_are_gone_is_ended(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_REQUEUE_SECONDS", 0.0)
    code = fake.wait(QUEUED_AGAIN, QUEUED_AGAIN, CANCELLED, fits=False)
    assert code == ExitCode.RANK_FAILED
    assert fake.commands == [("scancel", "7")]


def test_requeued_job_that_fits_may_wait(fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_REQUEUE_SECONDS", 0.0)
    assert fake.wait(QUEUED_AGAIN, QUEUED_AGAIN, QUEUED_AGAIN, DONE, fits=True) == ExitCode.DONE
    assert fake.commands == []


def test_silent_controller_is_borne(fake: FakeSlurm) -> None:
    assert fake.wait(RUNNING, UserError("no answer"), RUNNING, DONE) == ExitCode.DONE


def test_controller_that_stays_silent_is_not(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_SILENCE_SECONDS", -1.0)
    with pytest.raises(UserError, match="no answer"):
        fake.wait(RUNNING, UserError("no answer"))


def test_cancelled_by_the_user_is_stopped(fake: FakeSlurm) -> None:
    assert fake.wait(RUNNING, CANCELLED) == ExitCode.STOPPED
