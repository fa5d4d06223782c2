"""How a start ended, and why it failed: derived once, from what ranks noted and from the launcher.

The launcher's status alone is not enough: MPICH's mpirun gives the bitwise *or* of all codes, Open
MPI's the first that was not zero, srun the highest, each has its own number for a rank that died of
a signal, and an mpirun that was ended by us may give 0.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from contextlib import suppress

from heterps_hpc import events
from heterps_hpc.events import Ended, History, RankEnded, Stalled, Started, StopWanted
from heterps_hpc.exit_codes import GRAVEST_FIRST, ExitCode
from heterps_hpc.heartbeats import SIGNAL_OF_DEAD, describe_dead
from heterps_hpc.launch.launcher_output import main_line
from heterps_hpc.rundir import RunDir

SHARED_MEMORY = "/dev/shm"
BROKEN_AMX = (
    "some virtual machines announce AMX, which torch uses for bfloat16, but cannot run it; set "
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment of the ranks, or use "
    "`train.precision: float32`"
)
OUT_OF_MEMORY = (
    "if nobody sent it, the kernel did, for want of memory: that node's `dmesg` says so, and "
    "`sacct -o JobID,State,MaxRSS` for a job; give the tables more ranks, `hot_bytes` with "
    "`spill_dir`, a `precision` of 16 bits or `admit_after`"
)
_START = "heterps: a start of mpirun, "
_NOTHING = ["(nothing)"]
_LAST_LINES = 12
_SEARCHED_LINES = 60  # earlier ones belong to an earlier start of the same job


def outcome(history: History, num_ranks: int, status: int, *, killed: bool = False) -> ExitCode:
    """The outcome of the newest start of `num_ranks` ranks.

    Done only if all ranks of one world have noted it. `killed`: the launcher had to end ranks that
    did not end by themselves.
    """
    noted = set(history.rank_codes)
    for code in GRAVEST_FIRST:
        if code in noted and code != ExitCode.DONE:
            return code
    if history.num_ranks_done == num_ranks:
        return ExitCode.DONE
    if killed:
        return ExitCode.RANK_FAILED
    if history.newest_start.last(StopWanted) is not None:
        return ExitCode.STOPPED  # ranks too young to catch the signal died of it, as asked
    if status in set(GRAVEST_FIRST) - {ExitCode.DONE}:
        return ExitCode(status)
    return ExitCode.RANK_FAILED


def mark_start(run: RunDir) -> None:
    """Keep what an earlier start printed apart from what the next one will print."""
    with suppress(OSError), run.launcher_log.open("a", encoding="utf-8") as file:
        file.write(f"{_START}{time.strftime('%Y-%m-%d %H:%M:%S')}\n")


def explain(run: RunDir, code: ExitCode) -> str | None:
    """The reason of the newest failure, or None if it did not fail."""
    if code in (ExitCode.DONE, ExitCode.STOPPED):
        return None
    start = events.read(run).newest_start
    first = next((end for end in start.of(RankEnded) if end.code != ExitCode.STOPPED), None)
    if first is not None and code == ExitCode.NOT_SAVED:
        return first.reason
    stalled = start.last(Stalled)
    if code == ExitCode.STALLED and stalled is not None and stalled.ranks:
        return f"nothing moved any more: {stalled.ranks[0]}\nlogs: {run.logs}"
    if first is not None:
        who = f"rank {first.rank}"
        reason = first.reason or f"exit code {first.code}"
        if not reason.startswith(f"{who} "):  # what a rank did not raise as its own failure
            reason = f"{who} on {first.host} failed: {reason}"
        return f"{reason}\nits log: {run.rank_log(first.rank)}"
    printed = _last_output(run)
    return "\n".join(
        [
            describe_dead(run, printed) or _without_ranks(start, printed),
            *_signal_hints(start, printed),
            "the last output of the launcher:",
            *(f"  {line}" for line in printed[-_LAST_LINES:]),
            f"logs: {run.logs}",
        ]
    )


def _without_ranks(start: History, printed: list[str]) -> str:
    """Nothing of ours has run far enough to report: what the launcher itself complained about."""
    if _is_local(start) and (known := _how_launcher_ended(start, printed)):
        return known
    line = main_line(printed[-_SEARCHED_LINES:])  # none: only banners about the end
    why = "no rank reported why it ended"
    return why if line is None else f"{why}; the launcher printed: {line}"


def _how_launcher_ended(start: History, printed: list[str]) -> str | None:
    """What `heterps` or mpirun did, or what was done to them."""
    stop, end = start.last(StopWanted), start.last(Ended)
    if end is None and printed == _NOTHING:
        return (
            "`heterps` itself was killed, or its machine stopped, and its ranks ended with it; "
            "nobody recorded why"
        )
    if end is not None and stop is not None:
        # as they were too slow, or as the user asked again
        return f"the ranks were killed before they had saved and ended ({stop.why})"
    if end is not None and end.status is not None and end.status < 0:
        return f"mpirun was killed by signal {-end.status}, and its ranks ended with it"
    return None


def _is_local(start: History) -> bool:
    begun = start.last(Started)
    return begun is not None and begun.launcher == "mpirun"


def _signal_hints(start: History, printed: list[str]) -> list[str]:
    """What a rank that was killed by the processor or the kernel cannot report itself."""
    end = start.last(Ended)
    signals = {int(number) for line in printed for number in SIGNAL_OF_DEAD.findall(line)}
    signals.add(abs(end.status or 0) % 128 if end is not None else 0)
    hints = []
    if signal.SIGBUS in signals or any("Bus error" in line for line in printed):
        hints.append(
            f"a bus error: {SHARED_MEMORY} was full ({free_shared_memory() / 2**20:.0f} MB free "
            f"now), where MPI keeps messages; remove old files there, or enlarge it (`mount -o "
            f"remount,size=2G {SHARED_MEMORY}`, `docker run --shm-size`)"
        )
    if any("Illegal instruction" in line for line in printed):  # 4 alone is also a code of ours
        hints.append(f"an illegal instruction: {BROKEN_AMX}")
    if signal.SIGKILL in signals and start.last(StopWanted) is None:  # else the launcher sent it
        hints.append(f"signal {int(signal.SIGKILL)}: {OUT_OF_MEMORY}")
    return hints


def free_shared_memory() -> int:
    """Bytes that MPI's shared memory can still take on this machine."""
    try:
        return shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        return sys.maxsize  # no such file system: MPI does not use it


def _last_output(run: RunDir) -> list[str]:
    """Of the newest start; a start of Slurm's has a log of its own."""
    logs = run.launcher_logs()
    if not logs:
        return _NOTHING
    text = logs[-1].read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.strip("= ")]
    marks = [number for number, line in enumerate(lines) if line.startswith(_START)]
    return lines[marks[-1] + 1 if marks else 0 :] or _NOTHING
