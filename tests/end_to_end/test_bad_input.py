"""Mistakes that only the ranks can see: one clear line, every rank ends, soon, with a code."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heterps_hpc.config import Job
from heterps_hpc.exit_codes import ExitCode
from tests.equivalence.cases import Case
from tests.equivalence.click_log import write_click_logs
from tests.faults.runs import RANK_PROGRAM, Run, events, make_run, metrics
from tests.mpi_run import Outcome, mpirun

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.timeout(300)]

CASE = Case("ctrdnn", "2+1", 2, 1, "float32", "plain")
NAN_CASE = replace(CASE, variant="nan")
SECONDS = 20.0  # from the first rank that gives up to the end of all, on a busy machine

OWN_MODEL = """
from heterps_hpc.model import Lookup, Model, TableSpec, dense, embedding
from heterps_hpc.models.layers import BceLoss, Logit

def build(parameters, schema):
    return Model(
        "own",
        (
            embedding("embedding", [Lookup({slot!r}, {table!r}, "embedded")]),
            dense("logit", lambda: Logit(4), {reads!r}, {writes!r}),
            dense("loss", BceLoss, "score label", "loss", kind="loss"),
        ),
        (TableSpec("users", 4),),
    )
"""
RIGHT = {"slot": "user", "table": "users", "reads": "embedded", "writes": "score"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("click_logs")
    write_click_logs(path)
    return path


def start(run: Run, num_ranks: int | None = None) -> Outcome:
    arguments = [*RANK_PROGRAM, str(run.directory.path)]
    outcome = mpirun(num_ranks or run.layout.num_ranks, arguments, timeout=240)
    gave_up = [event["time"] for event in events(run, "rank_end")]
    assert time.time() - min(gave_up, default=time.time()) < SECONDS
    return outcome


def the_line(outcome: Outcome) -> str:
    """The one line that says what happened."""
    assert not outcome.timed_out, outcome.output
    assert "Traceback" not in outcome.output
    lines = [line for line in outcome.output.splitlines() if "heterps: " in line]
    assert len(lines) == 1, outcome.output
    return lines[0]


def change_job(run: Run, **changes: Any) -> None:
    """Put another job into a run directory whose layout is made already."""
    described = run.job.model_dump(mode="json", exclude_none=True) | changes
    Job.parse(described, "job").save(run.directory.job)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_layout_for_another_number_of_ranks(data: Path, tmp_path: Path, num_ranks: int) -> None:
    outcome = start(make_run(tmp_path, data, CASE), num_ranks)
    assert outcome.returncode == ExitCode.USER_ERROR
    line = the_line(outcome)
    assert "3 ranks" in line
    assert str(num_ranks) in line


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"slot": "usr"}, "usr"),
        ({"table": "user"}, "no table 'user'"),
        ({"reads": "embeded"}, "reads 'embeded', which no earlier layer writes"),
        ({"writes": "score spare"}, "'spare' of layer 'logit' is never read"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_model_that_does_not_fit(
    data: Path, tmp_path: Path, wrong: dict[str, str], said: str
) -> None:
    run = make_run(tmp_path / "run", data, CASE)
    file = tmp_path / "own.py"
    file.write_text(OWN_MODEL.format(**RIGHT | wrong))
    change_job(run, model={"file": str(file)})
    outcome = start(run)
    assert outcome.returncode == ExitCode.USER_ERROR
    assert said in the_line(outcome)


def test_a_right_model_for_the_wrong_layout(data: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", data, CASE)
    file = tmp_path / "own.py"
    file.write_text(OWN_MODEL.format(**RIGHT))
    change_job(run, model={"file": str(file)})
    outcome = start(run)
    assert outcome.returncode == ExitCode.USER_ERROR
    assert "layout" in the_line(outcome)


def test_a_column_that_is_not_in_the_data(data: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, data, CASE)
    change_job(run, model={"name": "ctrdnn", "slots": ["user", "shoe_size"]})
    outcome = start(run)
    assert outcome.returncode == ExitCode.USER_ERROR
    assert "shoe_size" in the_line(outcome)


def test_data_that_is_not_there(data: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, data, CASE)
    change_job(run, data={"train": str(tmp_path / "nowhere")})
    outcome = start(run)
    assert outcome.returncode == ExitCode.USER_ERROR
    assert "nowhere" in the_line(outcome)


def test_a_loss_that_is_not_a_number_ends_with_step_rank_and_stage(
    data: Path, tmp_path: Path
) -> None:
    run = make_run(tmp_path, data, NAN_CASE, train={"on_nan": "stop"})
    outcome = start(run)
    assert outcome.returncode == ExitCode.RANK_FAILED
    line = the_line(outcome)
    assert "the loss of step " in line
    assert " is nan on rank 2 dense stage 1 on " in line
    assert "train.on_nan: skip" in line


def test_scores_that_are_no_numbers_are_counted_when_bad_batches_are_skipped(
    data: Path, tmp_path: Path
) -> None:
    """Rates beyond all reason: weights grow a billion times a step, so scores overflow."""
    run = make_run(
        tmp_path,
        data,
        replace(CASE, variant="evaluate", precision="float32"),
        train={
            "on_nan": "skip",
            "dense": {"optimizer": "sgd", "lr": 1e6, "weight_decay": 1e3},
        },
    )
    start(run).check()
    found = json.loads(run.directory.summary.read_text())["evaluation"]
    assert found["nonfinite_scores"] > 0
    assert "auc" not in found


def test_a_layout_without_one_of_the_shards(data: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, data, CASE)
    described = json.loads(run.directory.layout.read_text())
    lost = described["ranks"][0]["shards"].pop()
    run.directory.layout.write_text(json.dumps(described))
    outcome = start(run)
    assert outcome.returncode == ExitCode.USER_ERROR
    assert f"table {lost['table']!r}" in the_line(outcome)


def test_skipped_batches_are_counted(data: Path, tmp_path: Path) -> None:
    """One sample of 211 is bad: with 6 batches per epoch, 12 steps meet it twice."""
    run = make_run(tmp_path, data, NAN_CASE)
    start(run).check()
    assert json.loads(run.directory.summary.read_text())["skipped_steps"] == 2
    losses = [line["loss"] for line in metrics(run) if line["kind"] == "train"]
    assert len(losses) == 12
    assert losses.count(None) == 2
