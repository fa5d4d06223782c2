"""The simulated device does what it promises: what is tested on it is only as good as that."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.sim_device import environment
from tests.sim_device.checks import CHECKS


@pytest.fixture(scope="module")
def found() -> dict[str, str | None]:
    """Errors of all checks, from one process: the device cannot be removed from this one."""
    command = [sys.executable, "-m", "tests.sim_device.checks"]
    settings = {**os.environ, **environment()}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    errors: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return errors


@pytest.mark.parametrize("name", CHECKS)
def test_the_device(name: str, found: dict[str, str | None]) -> None:
    if found[name] is not None:
        pytest.fail(found[name] or "", pytrace=False)
