"""Lists of runs, and runs next to each other."""

import io
import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from heterps_hpc import events
from heterps_hpc import format as fmt
from heterps_hpc.commands.compare import compare_runs
from heterps_hpc.commands.ls import ls
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.events import Launched, Submitted
from heterps_hpc.report import charts
from heterps_hpc.report.comparison import compare
from heterps_hpc.report.inputs import read_run
from heterps_hpc.report.outcome import sentences
from heterps_hpc.report.spending import spending
from heterps_hpc.rundir import RunDir
from tests.report.made_up import summary, write_run


@pytest.fixture(autouse=True)
def _without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "available", lambda: False)


@pytest.fixture
def runs(tmp_path: Path) -> list[RunDir]:
    """Two runs; the second has a larger batch and a better AUC."""
    first, second = (write_run(tmp_path / "runs" / name) for name in ("first", "second"))
    job = Job.parse_saved(second.job)
    train = job.train.model_copy(update={"batch_size": 2 * job.train.batch_size})
    job.model_copy(update={"train": train}).save(second.job)
    totals = summary()
    totals["evaluation"] = {**totals["evaluation"], "auc": 0.99}
    second.summary.write_text(json.dumps(totals))
    return [first, second]


def listed(folder: Path, width: int = 80, **options: object) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    ls(folder, console=console, **options)  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_list_of_runs_has_totals_and_fits_80_columns(runs: list[RunDir]) -> None:
    folder = runs[0].path.parent
    text = listed(folder)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "62,000" in text
    assert "2 runs" in text
    found = json.loads(listed(folder, as_json=True))
    assert {line["name"] for line in found} == {"first", "second"}
    total = sum(line["money"] for line in found)
    assert total > 0
    assert f"${total:.3g}" in text.splitlines()[-1] or f"${total:,.2f}" in text.splitlines()[-1]
    # numbers are never cut, however narrow it is
    assert "62,000" in listed(folder, 60)


def test_measuring_and_trials_are_part_of_what_a_run_cost(runs: list[RunDir]) -> None:
    run = runs[0]
    before, folder = json.loads(listed(run.path, as_json=True))[0]["money"], run.path.parent
    for inner in (run.measurement("pool0"), run.trial("abc"), run.trial("without-a-cluster")):
        write_run(inner.path)
    RunDir(folder / "first/trials/without-a-cluster").cluster.unlink()
    (line,) = json.loads(listed(run.path, as_json=True))
    assert line["money"] == pytest.approx(3 * before)
    spent = spending(read_run(run))
    assert spent is not None
    assert spent.money == pytest.approx(3 * before)
    assert spent.besides == pytest.approx({"measuring": before, "trials": before})
    assert f"With {fmt.money(before)} for measuring and" in " ".join(
        sentences(read_run(run), spent)
    )
    # also of a run that was measured and not started
    run.history.unlink()
    (line,) = json.loads(listed(run.path, as_json=True))
    assert line["money"] == pytest.approx(2 * before)


def test_states_are_not_cut_inside_words(runs: list[RunDir]) -> None:
    runs[0].history.unlink()
    runs[0].layout.unlink()
    runs[0].path.rename(runs[0].path.with_name("click-log-2"))
    assert "prepared" in listed(runs[1].path.parent, 80)


@pytest.mark.parametrize(("width", "left_out"), [(70, "loss"), (60, "began"), (40, "samples/s")])
def test_a_narrow_list_has_fewer_columns(runs: list[RunDir], width: int, left_out: str) -> None:
    folder = runs[0].path.parent
    wide, narrow = listed(folder, 100), listed(folder, width)
    assert left_out in wide
    assert left_out not in narrow
    assert "…" not in narrow
    assert all(run.path.name in narrow for run in runs)


def test_runs_are_found_from_above_and_from_inside(runs: list[RunDir], tmp_path: Path) -> None:
    assert "first" in listed(tmp_path)
    assert "1 run " in listed(runs[0].path)
    runs[0].layout.write_text("{")
    assert "unreadable" in listed(tmp_path)
    assert "second" in listed(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no run in it"):
        listed(tmp_path / "empty")


def test_last_week_leaves_out_what_was_before(runs: list[RunDir]) -> None:
    folder = runs[0].path.parent
    old = events.read(runs[0]).events[0].time
    assert time.time() - old > 8 * 86400, "the made-up history is old"
    with pytest.raises(UserError, match="no run of the last 7 days"):
        listed(folder, days=7)
    RunDir(folder / "third").create()
    Job.parse_saved(runs[0].job).save(folder / "third" / "job.json")
    events.record(RunDir(folder / "third"), Launched())
    assert "1 run " in listed(folder, days=7)


def test_comparing_names_the_best_and_what_differs(runs: list[RunDir], tmp_path: Path) -> None:
    found = compare([read_run(run) for run in runs])
    auc = next(row for row in found.results if row.name == "AUC")
    assert auc.values[1] == "0.9900"
    assert auc.best == 1
    assert [row.name for row in found.differences] == ["job.train.batch_size"]
    console = Console(file=io.StringIO(), width=80, color_system=None)
    page = tmp_path / "page.html"
    compare_runs([run.path for run in runs] * 2, page, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(len(line) <= 80 for line in text.splitlines() if "page.html" not in line)
    assert "job.train.batch_size" in text
    html = page.read_text()
    assert "job.train.batch_size" in html
    assert 'src="http' not in html
    with pytest.raises(UserError, match="two or more"):
        compare_runs([runs[0].path], None, console)


def test_names_and_values_are_not_markup(runs: list[RunDir], tmp_path: Path) -> None:
    job = Job.parse_saved(runs[0].job)
    plan = job.plan.model_copy(update={"scheduler": "<b>[red]x[/]</b>"})
    job.model_copy(update={"plan": plan}).save(runs[0].job)
    console = Console(file=io.StringIO(), width=200, color_system=None)
    compare_runs([run.path for run in runs], tmp_path / "page.html", console)
    assert isinstance(console.file, io.StringIO)
    assert "<b>[red]x[/]</b>" in console.file.getvalue()
    assert "<b>[red]" not in (tmp_path / "page.html").read_text()


def test_a_queued_job_is_not_asked_about_where_slurm_is_not(
    runs: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    events.record(runs[0], Launched(on="slurm"))
    events.record(runs[0], Submitted(job_id=7))
    assert "first" in listed(runs[0].path.parent)
