"""The simulated device does what it promises, and training on it what it does on the host.

Each list of checks runs in one process of its own: the device cannot be removed from this one.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim_device import environment

HERE = Path(__file__).parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def names(program: str) -> list[str]:
    """Names of a program's checks, read without importing MPI into this process."""
    body = ast.parse((HERE / f"{program}.py").read_text()).body
    found = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    return [name.removeprefix("check_") for name in found if name.startswith("check_")]


def run(program: str, *arguments: object) -> dict[str, str | None]:
    """Errors of a program's checks."""
    command = [sys.executable, "-m", "mpi4py", "-m", f"tests.sim_device.{program}"]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment()},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    errors: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return errors


@pytest.fixture(scope="module")
def of_the_device() -> dict[str, str | None]:
    """Errors of all checks of the device itself."""
    return run("checks")


@pytest.fixture(scope="module")
def of_training(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Errors of all checks of training on it."""
    return run("training_checks", tmp_path_factory.mktemp("sim"))


@pytest.mark.parametrize("name", names("checks"))
def test_the_device(name: str, of_the_device: dict[str, str | None]) -> None:
    fail_with(of_the_device[name])


@pytest.mark.parametrize("name", names("training_checks"))
def test_training(name: str, of_training: dict[str, str | None]) -> None:
    fail_with(of_training[name])


def fail_with(error: str | None) -> None:
    """Fail with another process's traceback, if there is one."""
    if error is not None:
        pytest.fail(error, pytrace=False)
