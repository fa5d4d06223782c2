"""The command line in odd surroundings, and its one style: `-h`, `--version`, completion."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep import DESCRIPTIONS, SOURCES
from heterps_hpc import __version__

PAPER = Path(__file__).parents[2] / "examples/ctr_paper.yaml"
ASCII = {"PYTHONIOENCODING": "ascii", "LC_ALL": "POSIX", "PYTHONUTF8": "0"}


def heterps(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "heterps_hpc.cli", *words]
    settings = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=settings, timeout=60)


@pytest.mark.parametrize("words", [["--help"], ["prepare", "--help"], ["run", "nö-such-jöb.yaml"]])
def test_ascii_streams(words: list[str]) -> None:
    done = heterps(*words, **ASCII)
    assert "UnicodeEncodeError" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == (2 if words[0] == "run" else 0)


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_prepare_help_lists_the_sources(word: str) -> None:
    done = heterps("prepare", word)
    assert done.returncode == 0
    assert DESCRIPTIONS.keys() == SOURCES.keys()
    for name, text in DESCRIPTIONS.items():
        assert name in done.stdout
        assert text in done.stdout


@pytest.mark.parametrize(
    "words", [["-h"], ["run", "-h"], ["data", "info", "-h"], ["checkpoint", "-h"]]
)
def test_every_verb_has_a_short_help(words: list[str]) -> None:
    done = heterps(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.lstrip().startswith("Usage:")


def test_version_and_completion() -> None:
    assert heterps("--version").stdout.strip() == __version__
    words = {"_HETERPS_COMPLETE": "complete_bash", "COMP_WORDS": "heterps sta", "COMP_CWORD": "1"}
    command = [str(Path(sys.executable).parent / "heterps")]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **words}, timeout=60
    )
    assert done.stdout.split() == ["status"]


def test_measuring_from_a_run_that_is_not_there_makes_nothing(tmp_path: Path) -> None:
    made = tmp_path / "run"
    done = heterps("measure", str(PAPER), "--from", "nowhere", "--run-dir", str(made))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("heterps: nowhere: not a run directory")
    assert not made.exists()


@pytest.mark.parametrize("words", [["ls"], ["status", "."], ["init"]])
def test_a_deleted_working_directory_is_one_line(words: list[str], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = [sys.executable, "-m", "heterps_hpc.cli", *words]
    script = f"rmdir {shlex.quote(str(gone))} && exec {shlex.join(command)}"
    settings = {**os.environ, "PYTHONPATH": str(PAPER.parents[1])}
    done = subprocess.run(
        ["sh", "-c", script], cwd=gone, capture_output=True, text=True, env=settings, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("heterps: the working directory was deleted")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnu"], "no such command 'rnu'. Did you mean 'run'?; see `heterps -h`"),
        (["measure"], "missing argument 'job'; see `heterps measure -h`"),
        (["run", "job.yaml", "--resum"], "; see `heterps run -h`"),
        (["export", "run", "out", "--format", "onx"], "'onx' is not one of 'onnx', 'torch'; see"),
        (["checkpoint", "burn"], "see `heterps checkpoint -h`"),
        (["prepare", "csv", "rows.csv"], "--recipe, --out; see `heterps prepare csv --help`"),
        (["prepare", "synthetic", "out", "--rows", "x"], "invalid int value: 'x'; see"),
    ],
)
def test_wrong_words_are_one_line(words: list[str], said: str) -> None:
    done = heterps(*words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("heterps: ")
    assert said in line


def test_no_words_at_all_are_answered_by_the_help() -> None:
    for words in ([], ["data"]):
        done = heterps(*words)
        assert done.returncode == 2
        assert "Usage: heterps" in done.stderr
        assert "Commands:" in done.stderr
