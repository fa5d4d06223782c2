"""A full disk at every write of a run.

    python -m tests.faults.full_disk_runs FOLDER WHAT EVERY [FIRST]

WHAT is `rank` (the rank program, a world of one), `command` (`heterps run` itself, with a real rank
that is spared) or `measuring` (the same, which measures and plans first). Each case is a fork of
this process, since its imports take longer than a run of this size; it needs full_disk.c by
LD_PRELOAD. Every EVERY-th write is tried, in two ways: the disk stays full, and there is space
again at once. Prints what is wrong, and at last how many cases ended with which code.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = False  # MPI does not survive a fork

from mpi4py import MPI  # noqa: E402

from heterps_hpc import cli, events  # noqa: E402
from heterps_hpc.config import Job  # noqa: E402
from heterps_hpc.exit_codes import ExitCode  # noqa: E402
from heterps_hpc.launch.failure import outcome  # noqa: E402
from heterps_hpc.rundir import RunDir  # noqa: E402
from heterps_hpc.runtime import rank_process, world  # noqa: E402
from tests.faults.harness import damaged_checkpoints, make_setting  # noqa: E402

NEVER = 1 << 40
CAUSE = "No space left on device"
Work = Callable[[RunDir], int]


class Trial:
    """One setting, run again and again with a disk that fills up."""

    def __init__(self, folder: Path, what: str) -> None:
        self.folder = folder
        shape = None if what == "measuring" else "1"
        self.setting = make_setting(folder / "setting", shape, steps=6, every=3, evaluate_every=3)
        self.work: Work = self.run_rank if what == "rank" else self.run_command
        self.disk = ctypes.CDLL(None)
        self.disk.full_disk.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long]

    def run_command(self, run: RunDir) -> int:
        """`heterps run`, in this process."""
        again = events.read(run).last(events.Started) is not None
        sys.argv = ["heterps", *self.setting.arguments(run, again=again)]
        cli.main()
        return 0

    def run_rank(self, run: RunDir) -> int:
        """The only rank of a world."""
        MPI.Init_thread()
        return rank_process.main([str(run.path), "--component", "0"])

    def new_run(self, name: str) -> RunDir:
        """What the rank program starts with is there; the command writes it itself."""
        run = self.setting.new_run(self.folder / name)
        if self.work == self.run_rank:
            Job.load(self.setting.job).save(run.job)
        return run

    def start(self, run: RunDir, first: int = NEVER, last: int = NEVER) -> tuple[int, str]:
        """Exit code, and what was printed."""
        printed = self.folder / "printed"
        if self.work == self.run_rank:
            events.record(run, events.Started(launcher="test"))
        child = os.fork()
        if child == 0:
            with printed.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            self.disk.full_disk(os.fsencode(run.path), first, last)
            code = 1
            try:
                code = self.work(run)
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                seen = {"count": self.disk.full_disk_count(), "modules": sorted(sys.modules)}
                (self.folder / "seen").write_text(json.dumps(seen))
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if self.work == self.run_rank:
            code = outcome(events.read(run), 1, code)
        return code, printed.read_text()

    def problems(self, run: RunDir, code: int, printed: str) -> Iterator[str]:
        """What is wrong after a run whose disk was full for a while."""
        if "Traceback" in printed:
            yield f"a traceback: {printed}"
        if code == ExitCode.DONE:
            yield from self.setting.problems(run)
            return
        if CAUSE not in printed:
            yield f"code {code} without its cause: {printed}"
        yield from damaged_checkpoints(run)
        saved = events.read(run).last(events.CheckpointSaved)
        if saved is not None and saved.step > max(run.saved_steps(), default=0):
            yield f"the checkpoint of step {saved.step} is lost: {run.saved_steps()}"
        if events.read(run).last(events.Started) is not None:
            code, printed = self.start(run)  # there is space again
            yield from [f"resumed: code {code}: {printed}"] if code else self.setting.problems(run)

    def undisturbed(self) -> int:
        """Note what is right; how many writes there are."""
        run = self.new_run("undisturbed")
        code, printed = self.start(run)
        if code != ExitCode.DONE:
            sys.exit(f"undisturbed: {code}: {printed}")
        self.setting.note(run)
        seen = json.loads((self.folder / "seen").read_text())
        for name in seen["modules"]:  # once here, not in every case
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        return int(seen["count"])

    def every_write(self, every: int, start: int) -> tuple[Counter[int], int]:
        """How many cases ended with which code, and how many not as they should."""
        codes: Counter[int] = Counter()
        num_wrong = 0
        for first in range(start, self.undisturbed() + 1, every):
            for last in (NEVER, first):
                run = self.new_run(f"{first}-{last}")
                code, printed = self.start(run, first, last)
                codes[code] += 1
                what = f"full at write {first} {'on' if last == NEVER else 'alone'}, code {code}"
                for problem in self.problems(run, code, printed):
                    num_wrong += 1
                    sys.stderr.write(f"{what}: {problem}\n")
                shutil.rmtree(run.path, ignore_errors=True)
        return codes, num_wrong


if __name__ == "__main__":
    del os.environ["LD_PRELOAD"]  # the ranks of the command are spared
    world.SECONDS_FOR_LAST_LINES = 0.0  # for launchers, of which there is none
    every, start = int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1
    codes, num_wrong = Trial(Path(sys.argv[1]), sys.argv[2]).every_write(every, start)
    print(json.dumps(codes))
    sys.exit(num_wrong > 0)
