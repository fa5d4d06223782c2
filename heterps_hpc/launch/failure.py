"""Why a run failed, in few lines: the rank that spoke first, else the launcher's last words."""

from __future__ import annotations

from heterps_hpc import history
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.heartbeats import last_words_of_dead
from heterps_hpc.rundir import RunDir

_LAST_LINES = 12


def explain(run: RunDir, code: ExitCode) -> str | None:
    """The reason of the newest failure, or None if it did not fail."""
    if code in (ExitCode.DONE, ExitCode.STOPPED):
        return None
    events = history.since_last(history.read(run), "start")
    ends = [e for e in events if e["event"] == "rank_end" and e["code"] != ExitCode.STOPPED]
    lines = []
    if ends:
        first = ends[0]
        reason = first.get("reason") or f"exit code {first['code']}"
        lines.append(f"rank {first['rank']} on {first['host']} failed: {reason}")
        lines.append(f"its log: {run.rank_log(int(first['rank']))}")
    else:
        words = _last_words(run)
        lines.append(last_words_of_dead(run, words) or "no rank said why it ended")
        lines.append("the last words of the launcher:")
        lines += [f"  {line}" for line in words[-_LAST_LINES:]]
        lines.append(f"logs: {run.logs}")
    return "\n".join(lines)


def _last_words(run: RunDir) -> list[str]:
    logs = [*run.logs.glob("slurm-*.log"), *run.logs.glob("launcher.log")]
    if not logs:
        return ["(nothing)"]
    newest = max(logs, key=lambda path: path.stat().st_mtime)
    text = newest.read_text(encoding="utf-8", errors="replace")
    return [line for line in text.splitlines() if line.strip("= ")] or ["(nothing)"]
