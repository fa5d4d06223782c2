"""`heterps report`: the page for people."""

from __future__ import annotations

import time

from heterps_hpc.rundir import RunDir


def report(run: RunDir) -> None:
    """Write the page and print where it is."""
    from rich.console import Console

    from heterps_hpc.commands.baseline import record_baseline
    from heterps_hpc.launch.live_line import LiveLine
    from heterps_hpc.report import write_report

    began = time.monotonic()
    working = LiveLine(lambda: ("writing the report", f"{time.monotonic() - began:.0f} s"))
    with working:
        record_baseline(run)
    write_report(run, Console(), working)
