"""The command line in odd surroundings: streams that know ASCII only, `prepare --help`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from data_prep import DESCRIPTIONS, SOURCES

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
