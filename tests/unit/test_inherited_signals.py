"""The suite runs in the background too, where shells have signals ignored."""

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHILD = "import signal; print([signal.getsignal(n).__class__.__name__ for n in (1, 2, 3)])"


def test_programs_under_test_start_with_default_signals() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert done.stdout == "['Handlers', 'builtin_function_or_method', 'Handlers']\n"


def test_also_where_signals_are_ignored() -> None:
    def ignore() -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)

    test = f"{__file__}::{test_programs_under_test_start_with_default_signals.__name__}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=ignore,
    )
    assert done.returncode == 0, done.stdout
