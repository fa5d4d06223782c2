"""Outcomes, events, the decision after a start, and the reading of what Slurm reports."""

import itertools
import json
import os
from pathlib import Path

import pytest

from heterps_hpc import events
from heterps_hpc.events import (
    Ended,
    Event,
    History,
    Launched,
    RankEnded,
    RanksDone,
    Started,
    StopWanted,
    Submitted,
    Torn,
)
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.failure import outcome
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.launch.mpi import flavour_of
from heterps_hpc.launch.progress import Progress, newest_metrics
from heterps_hpc.launch.rank_command import without_launchers
from heterps_hpc.launch.restart_policy import allows_restart, restarts_left
from heterps_hpc.launch.slurm.epilogue import conclude
from heterps_hpc.launch.slurm.job_state import JobState, parse
from heterps_hpc.launch.slurm.launcher import final_code
from heterps_hpc.rundir import RunDir
from tests.launch.values import make_cluster, make_job, make_layout

NUM_RANKS = 2


def started(*noted: Event) -> History:
    return History((Started(), *noted))


def ended(*codes: int) -> History:
    return started(*(RankEnded(rank=rank, code=code) for rank, code in enumerate(codes)))


def test_or_of_codes_by_hydra_is_undone_by_what_ranks_noted() -> None:
    assert outcome(ended(2, 4), NUM_RANKS, 2 | 4) == ExitCode.USER_ERROR
    assert outcome(ended(3, 4), NUM_RANKS, 3 | 4) == ExitCode.RANK_FAILED
    assert outcome(ended(3, 3), NUM_RANKS, 3) == ExitCode.STOPPED


@pytest.mark.parametrize("status", [1, 7, 8, 9, 15, 134, 137, 143, 255, -9])
def test_unknown_status_is_a_failed_rank(status: int) -> None:
    assert outcome(started(), NUM_RANKS, status) == ExitCode.RANK_FAILED


def test_done_only_if_every_rank_of_one_world_has_noted_it() -> None:
    """mpirun that was ended by us gives 0; worlds of one rank each give 0 as well."""
    assert outcome(started(), NUM_RANKS, 0) == ExitCode.RANK_FAILED
    assert outcome(started(RanksDone(num_ranks=1)), NUM_RANKS, 0) == ExitCode.RANK_FAILED
    done = RanksDone(num_ranks=NUM_RANKS)
    assert outcome(started(done), NUM_RANKS, 0) == ExitCode.DONE
    assert outcome(History((Started(), done, Started())), NUM_RANKS, 0) == ExitCode.RANK_FAILED


def test_a_start_that_had_to_be_killed_has_failed_unless_its_ranks_had_saved() -> None:
    asked = StopWanted(why="SIGTERM")
    assert outcome(started(asked), NUM_RANKS, 0, killed=True) == ExitCode.RANK_FAILED
    saved = started(asked, RankEnded(rank=0, code=3))
    assert outcome(saved, NUM_RANKS, 0, killed=True) == ExitCode.STOPPED
    # ranks too young to catch the signal died of it, as asked
    assert outcome(started(asked), NUM_RANKS, 10) == ExitCode.STOPPED
    # a rank that could not save when asked to is a failure all the same
    failed = started(asked, RankEnded(rank=0, code=4, reason="disk full"))
    assert outcome(failed, NUM_RANKS, 4) == ExitCode.RANK_FAILED


def test_only_resumable_codes_continue_and_only_so_often() -> None:
    for code, starts, stop in itertools.product(ExitCode, range(1, 4), (False, True)):
        past: list[Event] = [Started(), Launched(), *[Started()] * starts]
        past += [StopWanted()] if stop else []
        expected = code in (3, 4, 5) and starts <= 2 and not stop
        assert allows_restart(History(tuple(past)), code, 2) == expected


def run_with_job(tmp_path: Path, **launch: int) -> RunDir:
    run = RunDir(tmp_path / "run").create()
    make_job(**launch).save(run.job)
    return run


def record(run: RunDir, *found: Event) -> None:
    for event in found:
        events.record(run, event)


def test_conclusion_is_final_without_restarts(tmp_path: Path) -> None:
    run = run_with_job(tmp_path)
    record(run, Started())
    assert conclude(run, 3, NUM_RANKS) == "end 3"
    end = events.read(run).last(Ended)
    assert end is not None
    assert not end.again


def test_conclusion_counts_only_this_start(tmp_path: Path) -> None:
    run = run_with_job(tmp_path, max_restarts=2)
    record(run, Started(), RankEnded(rank=0, code=2), Started(), RankEnded(rank=0, code=4))
    assert conclude(run, 4, NUM_RANKS) == "again"
    record(run, Started())
    assert conclude(run, 9, NUM_RANKS) == "end 4"
    record(run, Launched(on="slurm"), Submitted(job_id=1), Started())
    assert conclude(run, 4, NUM_RANKS) == "again"  # the user's own start counts from one again


def test_n_restarts_are_n_plus_1_starts_in_all(tmp_path: Path) -> None:
    """A new job for the same launch does not begin to count again."""
    run = run_with_job(tmp_path, max_restarts=2)
    record(run, Launched(on="slurm"), Submitted(job_id=1))
    assert restarts_left(events.read(run), 2) == 2
    record(run, Started(), Torn(job_id=1), Submitted(job_id=2))
    assert restarts_left(events.read(run), 2) == 1
    record(run, Started())
    assert conclude(run, 4, NUM_RANKS) == "again"
    record(run, Started())
    assert conclude(run, 4, NUM_RANKS) == "end 4"
    assert restarts_left(events.read(run), 2) == 0


def test_wanted_stop_is_not_undone_by_a_requeue(tmp_path: Path) -> None:
    run = run_with_job(tmp_path, max_restarts=2)
    record(run, Started(), StopWanted())
    assert conclude(run, 3, NUM_RANKS) == "end 3"


def test_history_skips_broken_lines(tmp_path: Path) -> None:
    run = RunDir(tmp_path).create()
    record(run, Started(time=5.0))
    with run.history.open("a") as file:
        file.write('{"event": "en\n[]\n{"event": "end"}\n{"event": "of the future"}\n')
        file.write('{"event": "rank_end", "rank": "x", "code": 4}\n{"event": "end", "code": 0}\n')
    found = events.read(run)
    assert [event.kind for event in found.events] == ["start", "end"]
    assert found.events[-1].time == 5.0  # without a time of its own: not before the line before
    assert events.read(RunDir(tmp_path / "none")).events == ()


def test_an_event_after_a_line_that_a_full_disk_has_cut_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path).create()
    record(run, Started())
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda handle, line, write=os.write: write(handle, line[:9]))
        with pytest.raises(OSError, match="No space left"):
            record(run, StopWanted())
    record(run, RanksDone(num_ranks=2))
    assert [event.kind for event in events.read(run).events] == ["start", "ranks_done"]
    run.history.unlink()
    run.path.rename(tmp_path.with_name("deleted"))
    events.record_if_possible(run, StopWanted())  # neither written nor raised


JOB = (
    "JobId={id} HetJobId=19 HetJobOffset={offset} JobName=x JobState={state} Reason={reason} "
    "Dependency=(null) Requeue=1 Restarts={restarts} ExitCode={code} Partition=p NodeList=c1 "
    "Comment=JobState=FAILED"
)


def job_state(*components: tuple[str, int]) -> JobState:
    return parse(
        "\n".join(
            JOB.format(
                id=19 + i, offset=i, state=state, reason="None", restarts=restarts, code="0:0"
            )
            for i, (state, restarts) in reversed(list(enumerate(components)))
        )
    )


def test_slurms_report_is_read_by_component() -> None:
    text = JOB.format(id=20, offset=1, state="FAILED", reason="X", restarts=2, code="4:9")
    (component,) = parse(text).components
    assert (component.component, component.job_id, component.state) == (1, 20, "FAILED")
    assert (component.exit_code, component.signal, component.restarts) == (4, 9, 2)


@pytest.mark.parametrize(
    ("components", "torn"),
    [
        ([("PENDING", 1), ("RUNNING", 0)], True),
        ([("PENDING", 1), ("PENDING", 0), ("RUNNING", 0)], True),
        ([("PENDING", 1), ("PENDING", 1)], False),
        ([("PENDING", 0), ("PENDING", 0)], False),
        ([("RUNNING", 1), ("RUNNING", 1)], False),
        ([("PENDING", 1)], False),
    ],
)
def test_torn_jobs_are_seen(components: list[tuple[str, int]], torn: bool) -> None:
    assert job_state(*components).torn is torn


def test_final_code_of_a_cancelled_and_of_a_killed_job(tmp_path: Path) -> None:
    cluster = make_cluster()
    layout = make_layout(cluster, ("cpu", 1), ("gpu", 1))
    request = LaunchRequest(run_with_job(tmp_path), layout, make_job(), cluster)

    def code(*components: tuple[str, int]) -> ExitCode:
        return final_code(request, job_state(*components))

    assert code(("NODE_FAIL", 0), ("NODE_FAIL", 0)) == ExitCode.RANK_FAILED
    assert code(("COMPLETED", 0), ("COMPLETED", 0)) == ExitCode.RANK_FAILED  # no rank noted it
    assert final_code(request, None) == ExitCode.RANK_FAILED
    record(request.run, Started(), RanksDone(num_ranks=2))
    assert code(("COMPLETED", 0), ("COMPLETED", 0)) == ExitCode.DONE
    record(request.run, Started())
    assert code(("CANCELLED", 0), ("CANCELLED", 0)) == ExitCode.STOPPED
    assert events.read(request.run).stop_wanted  # by scancel: a restart must not undo it


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HYDRA build details:\n    Version:    5.0.2\n", ("mpich", "5.0.2")),
        ("mpirun (Open MPI) 4.1.4\n", ("openmpi", "4.1.4")),
        ("mpirun (Open MPI) 5.0.11\n", ("openmpi", "5.0.11")),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9 Build", ("mpich", "2021.9")),
        ("something else", None),
    ],
)
def test_flavours(text: str, expected: tuple[str, str] | None) -> None:
    assert flavour_of(text) == expected


def test_environment_of_outer_launchers_is_left_behind() -> None:
    kept = {"PATH": "/bin", "SLURM_CONF": "/c", "OMPI_MCA_pml": "ucx", "PRTE_MCA_x": "1"}
    left = {"SLURM_JOB_ID": "1", "SBATCH_PARTITION": "x", "PMI_RANK": "0", "PMIX_RANK": "0"}
    assert without_launchers({**kept, **left}) == kept


def test_progress_passes_whole_new_records_only(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n')
    seen: list[dict[str, object]] = []
    progress = Progress(metrics, seen.append)
    with metrics.open("a") as file:
        file.write('{"step": 2}\n{"st')
    progress.poll()
    progress.poll()
    assert seen == [{"step": 2}]
    with metrics.open("a") as file:
        file.write('ep": 3}\n')
    progress.poll()
    assert seen[-1] == {"step": 3}
    metrics.write_text('{"step": 1}\n')  # a resumed run starts from an earlier step
    progress.poll()
    assert seen[-1] == {"step": 1}


@pytest.mark.parametrize("block_bytes", [1, 7, 50, 65536])
def test_the_newest_of_each_kind_is_found_however_long_ago_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr("heterps_hpc.launch.progress._BLOCK_BYTES", block_bytes)
    metrics = tmp_path / "metrics.jsonl"
    assert newest_metrics(metrics) == {}
    kinds = ["train", "evaluation", "evaluation", *("train" for _ in range(300))]
    records = [{"kind": kind, "step": step} for step, kind in enumerate(kinds)]
    torn = '{"kind": "evaluation", "st'
    metrics.write_text("".join(json.dumps(record) + "\n" for record in records) + torn)
    assert newest_metrics(metrics) == {"train": records[-1], "evaluation": records[2]}


@pytest.mark.parametrize(
    "line", ["5", "[1]", '{"step": "x"}', "{}", "[" * 9999, '{"step": 1', '{"step": null}', "\xff"]
)
def test_lines_of_others_in_metrics_are_passed_over(tmp_path: Path, line: str) -> None:
    metrics = tmp_path / "metrics.jsonl"
    odd = f'{{"step": 7, "loss": "low", "auc": {10**400}, "log_loss": NaN, "kind": "train"}}'
    metrics.write_text(f"{odd}\n{line}\n", encoding="latin-1")
    assert newest_metrics(metrics) == {"train": {"step": 7, "kind": "train"}}
