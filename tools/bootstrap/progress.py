"""Long commands with a visible sign of life, and their output kept in a log."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PERCENT = re.compile(rb"\[ *(\d{1,3})%\]")  # as make and cmake print it
TAIL_LINES = 40


class SetupError(RuntimeError):
    """Something the user can put right; the text says how."""


class StepProgress:
    """Prints one line per step; on a terminal the line moves, elsewhere it is repeated."""

    def __init__(self, log_dir: Path, heartbeat_seconds: float = 20.0) -> None:
        self.log_dir = log_dir
        self.heartbeat_seconds = heartbeat_seconds
        self.started = time.monotonic()
        self.live = sys.stdout.isatty()

    def say(self, text: str) -> None:
        """One finished line."""
        clear = "\r\033[K" if self.live else ""
        print(f"{clear}[{time.monotonic() - self.started:4.0f}s] {text}", flush=True)

    def run(
        self,
        title: str,
        command: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Run a command; on failure show the end of its log and where the rest is."""
        self.log_dir.mkdir(parents=True, exist_ok=True)
        log = self.log_dir / (re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") + ".log")
        began = time.monotonic()
        self.say(f"{title} …")
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=cwd,
            )
            try:
                self._watch(process, title, log, began)
            except BaseException:
                process.kill()
                process.wait()
                raise
        if process.returncode != 0:
            tail = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
            raise SetupError(
                "\n".join(tail) + f"\n{title}: failed with exit code {process.returncode}; "
                f"the whole output is in {log}"
            )
        took = time.monotonic() - began
        if took >= 2 or self.live:
            self.say(f"{title}: {took:.0f} s")

    def _watch(self, process: subprocess.Popen[bytes], title: str, log: Path, began: float) -> None:
        period = 0.5 if self.live else self.heartbeat_seconds
        while True:
            try:
                process.wait(timeout=period)
                return
            except subprocess.TimeoutExpired:
                text = f"{title}: {time.monotonic() - began:.0f} s{_percent(log)}"
                if self.live:
                    elapsed = time.monotonic() - self.started
                    print(f"\r\033[K[{elapsed:4.0f}s] {text}", end="", flush=True)
                else:
                    self.say(text + " so far")


def _percent(log: Path) -> str:
    """The last percentage that a compiler run printed, if any."""
    with log.open("rb") as text:
        text.seek(max(0, log.stat().st_size - 20_000))
        found = PERCENT.findall(text.read())
    return f", {int(found[-1])} %" if found else ""
