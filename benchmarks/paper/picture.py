"""The two pictures: what each scheduler's plan cost against rl's, and throughput against others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.paper.experiment import ASKED, FASTEST, STATIC, cost_against_rl
from heterps_hpc.planning_result import Trial

OURS, OTHERS = "#c4512d", "#8a9aa8"


def draw(found: Mapping[tuple[str, str, float], Mapping[str, Trial]], path: Path) -> None:
    """Left: cost relative to rl, every model, cluster and floor a dot. Right: samples/s."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5))
    costs: dict[str, list[float]] = {}
    for trials in found.values():
        for name, ratio in cost_against_rl(trials).items():
            if math.isfinite(ratio):
                costs.setdefault(name, []).append(ratio)
    names = sorted((n for n in (*ASKED, *STATIC) if n in costs), key=lambda n: -median(costs[n]))
    for row, name in enumerate(names):
        colour = OURS if name == "rl" else OTHERS
        left.barh(row, median(costs[name]), color=colour, alpha=0.5)
        left.plot(costs[name], [row] * len(costs[name]), "o", color=colour, markersize=4)
    left.axvline(1.0, color=OURS, linewidth=1)
    left.set_yticks(range(len(names)), [_with_misses(name, costs[name], found) for name in names])
    left.set_title("money as run, times rl's (dots: models, clusters, floors; bar: median)")

    by_place = {key[:2]: trials for key, trials in found.items()}  # the same at all floors
    places = list(by_place)
    kinds = list(dict.fromkeys(n for t in found.values() for n in t if n not in (*ASKED, *STATIC)))
    width = 0.8 / max(len(kinds), 1)
    for index, kind in enumerate(kinds):
        tried = [by_place[place].get(kind) for place in places]
        rates = [(trial.samples_per_second if trial else None) or 0.0 for trial in tried]
        spots = [place + index * width for place in range(len(places))]
        label, fill = ("our fastest plan", OURS) if kind == FASTEST else (kind, f"C{index}")
        right.bar(spots, rates, width, label=label, color=fill)
    texts = [f"{model}\n{cluster.replace('-', '-' + chr(10), 1)}" for cluster, model in places]
    right.set_xticks([place + 0.3 for place in range(len(places))], texts, size=7)
    right.set_ylim(top=1.25 * right.get_ylim()[1])  # room for the legend
    right.set_title("samples per second")
    right.legend(fontsize=8)
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _with_misses(
    name: str, costs: Sequence[float], found: Mapping[tuple[str, str, float], Mapping[str, Trial]]
) -> str:
    """A scheduler, and how often it had no plan that meets the floor."""
    missing = len(found) - len(costs)
    return f"{name} (no plan in {missing} of {len(found)})" if missing else name
