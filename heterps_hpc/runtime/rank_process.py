"""The process of one rank, whatever it computes: it ends with its launcher and reports its end.

Runs first in every rank, before the heavy imports: a rank that is stopped or stuck in its first
seconds must not outlive its launcher either.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import runpy
import signal
import sys
import threading
from pathlib import Path

from heterps_hpc.pid_namespace import pid_namespace
from heterps_hpc.runtime.pmi_relay import relay_pmi

_PR_SET_PDEATHSIG = 1
_LAUNCHER_PID = "HETERPS_LAUNCHER_PID"
_LAUNCHER_NAMESPACE = "HETERPS_LAUNCHER_NAMESPACE"
_TRAINING = "heterps_hpc.runtime.rank_main"


def main(arguments: list[str]) -> int:
    """Run this rank's program; all ranks together note when all of them are done."""
    end_with_launcher()
    relay_pmi(os.environ)
    options, rest = _parse(arguments)
    from heterps_hpc import run_lock
    from heterps_hpc.rundir import RunDir

    run = RunDir(options.run_dir)
    lock = run_lock.join(run)
    code = _run_program(options.program, [str(options.run_dir), *rest])
    if code == 0:
        code = _note_done(run)
    del lock  # until here it was ours; the kernel frees it if we are killed
    return code


def end_with_launcher() -> None:
    """Die when mpirun's helper on this node dies, or the `heterps` that started mpirun.

    The signal reaches a stopped process as well; the thread notices where MPI puts helpers of its
    own in between. In a container with process numbers of its own, `heterps` cannot be watched.
    Under Slurm, slurmstepd ends its tasks by itself.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died in this very moment
        os.kill(os.getpid(), signal.SIGKILL)
    launcher = os.environ.get(_LAUNCHER_PID, "")
    if launcher.isdigit() and os.environ.get(_LAUNCHER_NAMESPACE) == pid_namespace():
        watch = threading.Thread(target=_die_with, args=(int(launcher),), daemon=True)
        watch.start()


def _die_with(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        pass  # it is gone already
    except OSError:
        return  # an old kernel: mpirun itself has to do
    else:
        import select

        select.select([handle], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="heterps_hpc.runtime", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--program", default=_TRAINING, help="a module to run instead of training")
    return parser.parse_known_args(arguments)


def _run_program(program: str, arguments: list[str]) -> int:
    if program == _TRAINING:
        return int(importlib.import_module(program).main(arguments))
    sys.argv = [program, *arguments]
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _note_done(run: object) -> int:
    """One line for the whole world: appends from many nodes could overwrite each other.

    The exit code: a run whose history does not say that it is done is not.
    """
    from mpi4py import MPI

    from heterps_hpc import events
    from heterps_hpc.exit_codes import ExitCode
    from heterps_hpc.rundir import RunDir

    assert isinstance(run, RunDir)
    if MPI.Is_finalized():
        return 0
    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 0:
        try:
            events.record(run, events.RanksDone(num_ranks=MPI.COMM_WORLD.size))
        except OSError as error:
            sys.stderr.write(
                f"heterps: all ranks are done, but {run.history} does not record it: "
                f"{error.strerror}; free some space and continue with --resume\n"
            )
            return int(ExitCode.RANK_FAILED)
    return 0
