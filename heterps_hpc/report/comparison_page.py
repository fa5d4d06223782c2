"""A comparison as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from heterps_hpc import __version__
from heterps_hpc import format as fmt
from heterps_hpc.report import charts
from heterps_hpc.report.comparison import Comparison
from heterps_hpc.report.inputs import RecordedRun
from heterps_hpc.report.page import environment
from heterps_hpc.report.picture import POOL_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def render_comparison(runs: Sequence[RecordedRun], found: Comparison) -> str:
    """The page."""
    drawn = {}
    if charts.available():
        curves = {
            "loss": _curves(runs, found.runs, "training loss", lambda metric: metric.loss),
            "auc": _curves(runs, found.runs, "AUC", lambda metric: metric.auc),
        }
        drawn = {
            name: Markup(charts.render(paint, f"compare-{name}", *charts.SIZE))
            for name, paint in curves.items()
            if paint is not None
        }
    context = {"found": found, "version": __version__}
    context["charts"] = {name: drawn.get(name) for name in ("loss", "auc")}
    return environment().get_template("comparison.html.j2").render(context)


def _curves(
    runs: Sequence[RecordedRun],
    names: Sequence[str],
    label: str,
    value: charts.ValueOf,
) -> charts.Painter | None:
    """A line for each run, by step."""
    series = [charts.series(run, "train", value) for run in runs]
    if not any(len(points) > 1 for points in series):
        return None

    def paint(axes: Axes) -> None:
        for index, (points, name) in enumerate(zip(series, names, strict=True)):
            if points:
                colour = POOL_COLOURS[index % len(POOL_COLOURS)]
                axes.plot(*zip(*points, strict=True), color=colour, label=fmt.shorten(name, 24))
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        charts.legend_below(axes)

    return paint
