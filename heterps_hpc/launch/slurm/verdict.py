"""After a start: has the run ended, or does it go on from its checkpoint?"""

from __future__ import annotations

from heterps_hpc import history
from heterps_hpc.config import Job
from heterps_hpc.exit_codes import ExitCode, outcome
from heterps_hpc.rundir import RunDir


def goes_on(code: ExitCode, restarts: int, max_restarts: int, stop_wanted: bool) -> bool:
    """Whether to queue the job again."""
    return code.resumable and restarts < max_restarts and not stop_wanted


def conclude(run: RunDir, status: int) -> str:
    """Decide, write it into the history, and say it in the script's words."""
    past = history.read(run)
    restarts = history.restarts(past)
    events = history.since_last(past, "start")
    noted = [event["code"] for event in events if event["event"] == "rank_end"]
    stop_wanted = any(event["event"] == "stop_wanted" for event in events)
    code = outcome(status, noted)
    max_restarts = Job.parse_saved(run.job).launch.max_restarts
    again = goes_on(code, restarts, max_restarts, stop_wanted)
    history.record(run, "end", code=int(code), status=status, restart=restarts, again=again)
    return "again" if again else f"end {int(code)}"
