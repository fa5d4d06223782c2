"""`heterps report`: the page for people."""

from __future__ import annotations

from heterps_hpc.rundir import RunDir


def report(run: RunDir) -> None:
    """Write the page and print where it is."""
    from rich.console import Console

    from heterps_hpc.commands.baseline import record_baseline
    from heterps_hpc.launch.live_line import timed_line
    from heterps_hpc.report import write_report

    working = timed_line("writing the report")
    with working:
        record_baseline(run)
    write_report(run, Console(), working)
