"""Curves, drawn by matplotlib as inline SVG; the only module that needs it.

The text keeps the page's own font and colour, so that a chart reads like the page around it in
light and in dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from heterps_hpc import format as fmt
from heterps_hpc.report.inputs import RecordedRun
from heterps_hpc.report.outcome import choices
from heterps_hpc.report.records import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#010203"  # replaced by the page's own text colour
ACCENT = "#2f5fd0"
SECOND = "#c2571a"
THIRD = "#157a63"
FAINT = "#9aa1ad"

Painter = Callable[["Axes"], None]
ValueOf = Callable[[Metric], float | None]
SIZE = (5.4, 3.1)  # inches: the text is still readable when a phone makes it narrower
NAMES = ("frontier", "learning", "loss", "auc", "throughput")


STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names with dollar signs are names
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
}


def available() -> bool:
    """Whether matplotlib is there; it is an extra of the package."""
    return find_spec("matplotlib") is not None


def render(paint: Painter, name: str, width: float, height: float) -> str:
    """One chart as an SVG element; `name` keeps ids of different charts apart."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context(STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        paint(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(buffer.getvalue(), name)


def _inline(text: str, name: str) -> str:
    """Without XML prologue, metadata and fixed size; ids made the chart's own."""
    svg = text[text.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"font: ([^;\"]*?)px [^;\"]*", r"font-size: \1px", svg)
    svg = svg.replace(INK, "currentColor")
    prefix = re.sub(r"\W", "-", name)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)


def all_charts(run: RecordedRun) -> dict[str, str]:
    """Every chart that the run has data for, by name."""
    painters: dict[str, Painter | None] = {
        "frontier": _frontier(run),
        "learning": _learning(run),
        "loss": _loss(run),
        "auc": _auc(run),
        "throughput": _throughput(run),
    }
    return {
        name: render(paint, name, *SIZE) for name, paint in painters.items() if paint is not None
    }


def _frontier(run: RecordedRun) -> Painter | None:
    points = sorted(
        ((plan.estimate.samples_per_second, plan.estimate.money) for plan in run.planning.frontier)
        if run.planning
        else []
    )
    rows = [row for row in choices(run) if row.money is not None]
    if not points and len(rows) < 2:
        return None

    def paint(axes: Axes) -> None:
        if points:
            x, y = zip(*points, strict=True)
            # a floor between two plans costs as much as the faster one
            axes.step(x, y, where="pre", color=ACCENT, marker=".", label="cheapest plan")
        others = [row for row in rows if not row.is_chosen]
        axes.scatter(
            [row.samples_per_second or 0 for row in others],
            [row.money or 0 for row in others],
            color=FAINT,
            s=26,
            label="other schedulers",
            zorder=3,
        )
        for row in rows:
            if row.is_chosen:
                axes.scatter(
                    [row.samples_per_second or 0],
                    [row.money or 0],
                    color=SECOND,
                    marker="*",
                    s=170,
                    zorder=4,
                    label=f"chosen ({fmt.shorten(row.scheduler, 20)})",
                )
        floor = run.planning.floor if run.planning else None
        if floor:
            axes.axvline(floor, color=THIRD, linestyle="--", linewidth=1.2, label="floor")
        _axis_of_rates(axes, "x", "samples per second")
        axes.yaxis.set_major_formatter(lambda value, _: _tick_of_money(value))
        _from_zero(axes)
        axes.set_ylabel("cost of the job")
        legend_below(axes)

    return paint


def _learning(run: RecordedRun) -> Painter | None:
    points = run.planning.learning_curve if run.planning else ()
    if len(points) < 2:
        return None
    plan = run.layout.plan if run.layout else None
    end = (run.planning.scheduler_seconds if run.planning else None) or points[-1].seconds
    seconds = [point.seconds for point in points] + [max(end, points[-1].seconds)]
    money = [point.money for point in points] + [points[-1].money]

    def paint(axes: Axes) -> None:
        axes.step(seconds, money, color=ACCENT, where="post", marker=".", label="best plan so far")
        if plan is not None and plan.optimum_money is not None:
            label = "lower bound" if plan.gap_is_bound else "certified optimum"
            axes.axhline(
                plan.optimum_money, color=THIRD, linestyle="--", linewidth=1.2, label=label
            )
        if max(money) > 20 * min(money) > 0:
            axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: _tick_of_money(value))
        axes.set_xlabel("seconds of search")
        axes.set_ylabel("cost of the job")
        legend_below(axes)

    return paint


def series(run: RecordedRun, kind: str, value: ValueOf) -> list[tuple[int, float]]:
    """Values by step; a resumed run repeats some steps, and its last word counts."""
    found = {
        metric.step: number
        for metric in run.metrics
        if metric.kind == kind and (number := value(metric)) is not None
    }
    return sorted(found.items())


def _curve(
    training: list[tuple[int, float]], tests: list[tuple[int, float]], label: str
) -> Painter | None:
    if len(training) < 2 and not tests:
        return None

    def paint(axes: Axes) -> None:
        if training:
            axes.plot(*zip(*training, strict=True), color=ACCENT, label="training batches")
        if tests:
            axes.plot(
                *zip(*tests, strict=True), color=SECOND, marker="o", markersize=5, label="test data"
            )
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        legend_below(axes)

    return paint


def _loss(run: RecordedRun) -> Painter | None:
    training = series(run, "train", lambda metric: metric.loss)
    tests = series(run, "evaluation", lambda metric: metric.log_loss)
    return _curve(training, tests, "loss (log loss)")


def _auc(run: RecordedRun) -> Painter | None:
    training = series(run, "train", lambda metric: metric.auc)
    tests = series(run, "evaluation", lambda metric: metric.auc)
    return _curve(training, tests, "AUC")


def _throughput(run: RecordedRun) -> Painter | None:
    measured = series(run, "train", lambda metric: metric.samples_per_second)
    if len(measured) < 2:
        return None
    plan = run.layout.plan if run.layout else None
    floor = run.planning.floor if run.planning else None

    def paint(axes: Axes) -> None:
        axes.plot(*zip(*measured, strict=True), color=ACCENT, label="measured")
        if plan is not None:
            predicted = plan.estimate.samples_per_second
            axes.axhline(predicted, color=SECOND, linestyle="-", linewidth=1.2, label="predicted")
        if floor:
            axes.axhline(floor, color=THIRD, linestyle="--", linewidth=1.2, label="floor")
        _from_zero(axes)
        axes.set_xlabel("step")
        _axis_of_rates(axes, "y", "samples per second")
        legend_below(axes)

    return paint


def _from_zero(axes: Axes) -> None:
    """With some room above the highest line."""
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])


def legend_below(axes: Axes) -> None:
    """Outside of the axes, so that it never lies on the data."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.legend(loc="outside lower center", ncols=4, fontsize=8.5)


def _axis_of_rates(axes: Axes, which: str, label: str) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(lambda value, _: fmt.count(value))
    axis.set_label_text(label)


def _tick_of_money(value: float) -> str:
    """As everywhere, but 0.002 rather than 0.00200."""
    text = fmt.money(value)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
