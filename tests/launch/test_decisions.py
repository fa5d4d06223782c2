"""Exit codes, history, the verdict after a start, and the reading of Slurm's words."""

import itertools
from pathlib import Path

import pytest

from heterps_hpc import history
from heterps_hpc.exit_codes import ExitCode, outcome
from heterps_hpc.launch.mpi import flavour_of
from heterps_hpc.launch.progress import Progress, last_metrics
from heterps_hpc.launch.rank_command import without_launchers
from heterps_hpc.launch.slurm.follow import final_code, resumes_torn
from heterps_hpc.launch.slurm.job_state import JobState, parse
from heterps_hpc.launch.slurm.verdict import conclude, goes_on
from heterps_hpc.rundir import RunDir
from tests.launch.values import make_job


def test_or_of_codes_by_hydra_is_undone_by_what_ranks_noted() -> None:
    assert outcome(2 | 4, [2, 4]) == ExitCode.USER_ERROR
    assert outcome(3 | 4, [3, 4]) == ExitCode.RANK_FAILED
    assert outcome(3, [3, 3]) == ExitCode.STOPPED


@pytest.mark.parametrize("status", [1, 6, 7, 9, 15, 134, 137, 143, 255, -9])
def test_unknown_status_is_a_failed_rank(status: int) -> None:
    assert outcome(status) == ExitCode.RANK_FAILED


def test_status_zero_is_done_whatever_was_noted() -> None:
    assert outcome(0, [3]) == ExitCode.DONE


def test_only_resumable_codes_go_on_and_only_so_often() -> None:
    for code, restarts, stop in itertools.product(ExitCode, range(3), (False, True)):
        expected = code in (3, 4, 5) and restarts < 2 and not stop
        assert goes_on(code, restarts, 2, stop) == expected


def run_with_job(tmp_path: Path, **launch: int) -> RunDir:
    run = RunDir(tmp_path / "run").create()
    make_job(**launch).save(run.job)
    return run


def test_conclusion_is_final_without_restarts(tmp_path: Path) -> None:
    run = run_with_job(tmp_path)
    history.record(run, "start")
    assert conclude(run, 3) == "end 3"
    assert history.read(run)[-1]["again"] is False


def test_conclusion_counts_only_this_start(tmp_path: Path) -> None:
    run = run_with_job(tmp_path, max_restarts=2)
    history.record(run, "start")
    history.record(run, "rank_end", code=2)
    history.record(run, "start")
    history.record(run, "rank_end", code=4)
    assert conclude(run, 4) == "again"
    history.record(run, "start")
    assert conclude(run, 9) == "end 4"
    history.record(run, "submit", job_id=1)
    history.record(run, "start")
    assert conclude(run, 4) == "again"  # the user's own start counts anew


def test_wanted_stop_is_not_undone_by_a_requeue(tmp_path: Path) -> None:
    run = run_with_job(tmp_path, max_restarts=2)
    history.record(run, "start")
    history.record(run, "stop_wanted")
    assert conclude(run, 3) == "end 3"


@pytest.mark.parametrize(
    ("max_restarts", "torn_job", "stop", "expected"),
    [(1, 7, False, True), (0, 7, False, False), (1, 6, False, False), (1, 7, True, False)],
)
def test_torn_job_goes_on_as_another(
    tmp_path: Path, max_restarts: int, torn_job: int, stop: bool, expected: bool
) -> None:
    run = run_with_job(tmp_path, max_restarts=max_restarts)
    history.record(run, "submit", job_id=7)
    history.record(run, "start")
    if stop:
        history.record(run, "stop_wanted")
    history.record(run, "torn", job_id=torn_job)
    assert resumes_torn(run) is expected


def test_history_passes_over_broken_lines(tmp_path: Path) -> None:
    run = RunDir(tmp_path).create()
    history.record(run, "start", restart=0)
    with run.history.open("a") as file:
        file.write('{"event": "en\n[]\n')
    history.record(run, "end", code=0)
    assert [event["event"] for event in history.read(run)] == ["start", "end"]
    assert history.read(RunDir(tmp_path / "none")) == []


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


def test_slurms_words_are_read_by_component() -> None:
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
    run = RunDir(tmp_path).create()
    assert final_code(run, job_state(("CANCELLED", 0), ("CANCELLED", 0))) == ExitCode.STOPPED
    assert final_code(run, job_state(("NODE_FAIL", 0), ("NODE_FAIL", 0))) == ExitCode.RANK_FAILED
    assert final_code(run, job_state(("COMPLETED", 0), ("COMPLETED", 0))) == ExitCode.DONE
    assert final_code(run, None) == ExitCode.RANK_FAILED


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
    assert last_metrics(metrics) == {"step": 1}
    assert last_metrics(tmp_path / "none") is None
