"""`heterps status`: where a run stands."""

from __future__ import annotations

from pathlib import Path


def status(run_dir: Path, *, as_json: bool) -> None:
    """Print state, progress, checkpoints and what each rank does."""
    from heterps_hpc.launch.status import show

    show(run_dir, as_json=as_json)
