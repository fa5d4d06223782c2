"""`heterps report`: the page for people."""

from __future__ import annotations

from heterps_hpc.rundir import RunDir


def report(run: RunDir) -> None:
    """Write the page and print where it is."""
    from rich.console import Console

    from heterps_hpc.launch.live_line import LiveLine
    from heterps_hpc.report import write_report

    write_report(run, Console(), LiveLine(lambda: ["writing the report"]))
