"""A rank ends with the `heterps` that started it, if it can know it."""

import os
import signal
import subprocess
import sys

import pytest

from heterps_hpc.launch.process_tree import LAUNCHER_NAMESPACE, LAUNCHER_PID
from heterps_hpc.pid_namespace import pid_namespace

RANK = """
import time
from heterps_hpc.runtime.rank_process import end_with_launcher
end_with_launcher()
time.sleep(SECONDS)
"""


@pytest.mark.parametrize(
    ("namespace", "seconds", "status"),
    [(pid_namespace(), "60", -signal.SIGKILL), ("pid:[1]", "0.3", 0)],
    ids=["gone", "where process numbers are others"],
)
def test_a_launcher_that_is_not_there(namespace: str, seconds: str, status: int) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    settings = {LAUNCHER_PID: str(gone.pid), LAUNCHER_NAMESPACE: namespace}
    done = subprocess.run(
        [sys.executable, "-c", RANK.replace("SECONDS", seconds)],
        env={**os.environ, **settings},
        timeout=50,
        check=False,
    )
    assert done.returncode == status
