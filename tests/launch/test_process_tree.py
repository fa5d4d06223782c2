"""Which processes of a start are its ranks."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from heterps_hpc.launch.process_tree import ProcessTree

RANK = """
import signal, subprocess, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
time.sleep(0.05)
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_what_a_rank_has_started_is_not_the_rank(tmp_path: Path) -> None:
    lines: list[str] = []
    environment = {**os.environ, "PMI_RANK": "0"}
    tree = ProcessTree([sys.executable, "-c", RANK], environment, tmp_path / "log", lines.append)
    try:
        deadline = time.monotonic() + 20
        while not lines:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        ranks = tree.ranks()
        assert list(ranks) == [0]
        assert str(ranks[0].pid) not in lines
        assert tree.signal_ranks(signal.SIGUSR1) == 1
        assert tree.wait(20) == 3
    finally:
        tree.end()
