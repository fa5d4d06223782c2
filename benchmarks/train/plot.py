"""A bar chart of the rates."""

from __future__ import annotations

from pathlib import Path


def plot(rates: dict[str, dict[str, float]], path: Path) -> None:
    """One panel per workload, the fastest on top, ours in colour."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(rates), figsize=(7 * len(rates), 4.2), squeeze=False)
    for panel, (work, found) in zip(panels[0], rates.items(), strict=True):
        ordered = sorted(found.items(), key=lambda item: item[1])
        colours = ["#c4512d" if name.startswith("ours") else "#8a9aa8" for name, _ in ordered]
        panel.barh([name for name, _ in ordered], [rate for _, rate in ordered], color=colours)
        panel.set_title(f"{work}: samples per second, 2 cores")
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
