"""`heterps cancel`: end a run, wherever it runs."""

from __future__ import annotations

import logging
from pathlib import Path

from heterps_hpc import events
from heterps_hpc.commands.prepare import thaw
from heterps_hpc.launch.launcher import launcher_for

log = logging.getLogger(__name__)


def cancel(run_dir: Path, *, save: bool) -> None:
    """End the ranks at once, or after a checkpoint."""
    _, _, run = thaw(run_dir)
    log.info("%s", launcher_for(events.read(run).ran_on).cancel(run, save=save))
