"""Pictures of the schedulers benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

if TYPE_CHECKING:
    from benchmarks.schedulers.paper import PaperAnswer


MARKERS = "osD^vP*"


def styles(names: list[str]) -> dict[str, dict[str, Any]]:
    """A colour and a marker for each method; no two have the same, up to twenty."""
    palette = mpl.colormaps["tab20"].colors  # pairs of a strong and a pale one of each hue
    colours = [*palette[::2], *palette[1::2]]
    if len(names) > len(colours):
        raise ValueError(f"{len(names)} methods, but only {len(colours)} colours that differ")
    return {
        name: {"color": colours[place], "marker": MARKERS[place % len(MARKERS)]}
        for place, name in enumerate(names)
    }


def plot(sets: dict[str, list[PaperAnswer]], path: Path) -> None:
    """One row per experiment: money above the optimum, and the time to schedule: until a search
    found its plan, and until exact had its proof (or gave up)."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(sets), 2, figsize=(12, 3.2 * len(sets)), squeeze=False)
    looks = styles(list(next(iter(sets.values()))[0].found))
    for (title, answers), (money, seconds) in zip(sets.items(), axes, strict=True):
        for name in answers[0].found:
            found = [(a, a.found[name]) for a in answers if a.found[name].choices is not None]
            labels = [a.name for a, _ in found]
            style = {"label": name, "linewidth": 2.5 if name == "rl" else 1.0, **looks[name]}
            money.plot(labels, [max(a.gap(name), 0.0) for a, _ in found], **style)
            seconds.plot(labels, [f.curve[-1][0] for _, f in found], **style)
        proofs = [a.exact_seconds for a in answers]
        names = [a.name for a in answers]
        seconds.plot(names, proofs, label="exact", color="black", linestyle="--", marker="x")
        money.set_ylabel("money, % above optimum")
        money.set_yscale("symlog", linthresh=0.1)
        seconds.set_ylabel("time to schedule, s")
        seconds.set_yscale("log")
        for axis in (money, seconds):
            axis.set_title(f"by {title}")
            axis.grid(alpha=0.3)
        seconds.legend(fontsize=6, ncol=2)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)
