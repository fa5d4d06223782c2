"""`heterps export`: a trained model as files that run elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

from heterps_hpc.rundir import RunDir
from heterps_hpc.serving.export import Format, export_model
from heterps_hpc.serving.predictor import Predictor


def export(run_dir: Path, out: Path, dense_format: Format, step: int | None) -> str:
    """Write tables, dense layers and manifest; a line that names what is there."""
    predictor = Predictor.load(run_dir, step)
    manifest = export_model(predictor, out, dense_format, _metrics(RunDir(run_dir)))
    rows = sum(table["rows"] for table in manifest["tables"].values())
    return (
        f"{out}: step {predictor.step}, {len(manifest['tables'])} tables with {rows:,} rows, "
        f"dense layers in {manifest['dense_layers']['file']}"
    )


def _metrics(run: RunDir) -> dict[str, float]:
    """The evaluation at the end of the run, if there was one."""
    try:
        found = json.loads(run.summary.read_text())["evaluation"]
    except (OSError, ValueError, KeyError):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}
