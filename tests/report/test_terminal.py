"""The short form on a terminal."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from heterps_hpc.report import charts, write_report
from heterps_hpc.rundir import RunDir
from tests.report.made_up import write_run


@pytest.fixture(autouse=True)
def _without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Curves take most of the time, and a terminal shows none."""
    monkeypatch.setattr(charts, "available", lambda: False)


def printed(path: Path, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    write_report(RunDir(path), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_shows_the_outcome_the_table_and_where_the_page_is(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    text = " ".join(printed(run.path).replace("│", " ").split())
    assert "measured 62,000: +1.6 %." in text
    assert "rl ← cpu×2 → gpu×1 → cpu×1 $0.00201 61,000 0.0 %" in text
    assert str(run.report) in text.replace(" ", "") or str(run.report) in text


def test_names_are_not_markup(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "[red]job[/red] [link=http://e.example]x[/]")
    assert "[red]job[/red] [link=http://e.example]x[/]" in printed(run.path, 140)


def test_names_what_is_missing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    run.schedulers.unlink()
    assert "not in this report: no planning.json" in printed(run.path)


def test_fits_a_narrow_terminal(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    lines = printed(run.path, 60).splitlines()
    assert all(len(line) <= 60 for line in lines if "report.html" not in line)
