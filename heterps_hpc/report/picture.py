"""The plan as a picture: stages from left to right, their ranks, and the tensors between."""

from __future__ import annotations

from dataclasses import dataclass, field

from heterps_hpc import format as fmt
from heterps_hpc.layout import Layout
from heterps_hpc.report.inputs import Run
from heterps_hpc.report.outcome import estimated_pools
from heterps_hpc.report.phases import StageTime, stage_times

POOL_COLOURS = ("#2f5fd0", "#157a63", "#c2571a", "#7352c7", "#b03a6f", "#6b7a12", "#2a7f9e")
CARD_WIDTH = 208
GAP = 148
TOP = 14
HEAD = 46
LINE = 19
CHIP = 25
_CHIPS_PER_ROW = 7
_LAYERS_SHOWN = 7
_TENSORS_SHOWN = 3


@dataclass(frozen=True)
class Chip:
    """One rank (or a run of them that are too many to draw)."""

    x: float
    y: float
    width: float
    text: str
    tooltip: str


@dataclass(frozen=True)
class Card:
    """One stage."""

    x: float
    height: float
    colour: str
    title: str
    subtitle: str
    layers: list[tuple[float, str, str]]  # y, text, tooltip
    chips: list[Chip]
    times: str
    times_y: float
    binds: bool


@dataclass(frozen=True)
class Arrow:
    """Tensors from one stage to another."""

    path: str
    lines: list[tuple[float, float, str]]  # x, y, text
    tooltip: str


@dataclass(frozen=True)
class Picture:
    """What the template draws."""

    width: float
    height: float
    cards: list[Card] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)  # colour, pool


def draw(run: Run) -> Picture | None:
    """Geometry of the picture; None without a layout."""
    layout = run.layout
    if layout is None:
        return None
    pools = list(dict.fromkeys(stage.pool for stage in layout.stages))
    colours = {pool: POOL_COLOURS[i % len(POOL_COLOURS)] for i, pool in enumerate(pools)}
    estimated = estimated_pools(run)
    rows = max(min(len(stage.layers), _LAYERS_SHOWN) for stage in layout.stages)
    chip_rows = max(-(-len(_chips_of(layout, i)) // _CHIPS_PER_ROW) for i in _stages(layout))
    height = HEAD + 14 + rows * LINE + 10 + chip_rows * (CHIP + 5) + 30
    cards = [
        _card(layout, i, height, rows, colours, estimated, time)
        for i, time in zip(_stages(layout), stage_times(run), strict=True)
    ]
    arrows, depth = _arrows(run, layout, height)
    width = len(cards) * CARD_WIDTH + (len(cards) - 1) * GAP + 4
    legend = [
        (colours[pool], pool + (" (estimated)" if pool in estimated else "")) for pool in pools
    ]
    return Picture(width, TOP + height + depth + 6, cards, arrows, legend)


def _stages(layout: Layout) -> range:
    return range(len(layout.stages))


def _left(stage: int) -> float:
    return 2 + stage * (CARD_WIDTH + GAP)


def _chips_of(layout: Layout, stage: int) -> list[tuple[str, str]]:
    """Text and tooltip of each rank; many ranks become first, …, last."""
    ranks = [layout.ranks[rank] for rank in layout.stage_ranks(stage)]

    def chip(index: int) -> tuple[str, str]:
        rank = ranks[index]
        tables = ", ".join(dict.fromkeys(shard.table for shard in rank.shards))
        holds = f"; tables {fmt.shorten(tables, 300)}" if tables else ""
        return str(rank.rank), f"rank {rank.rank}: {rank.role}, replica {rank.replica}{holds}"

    if len(ranks) <= 2 * _CHIPS_PER_ROW:
        return [chip(index) for index in range(len(ranks))]
    hidden = len(ranks) - _CHIPS_PER_ROW
    first = [chip(index) for index in range(_CHIPS_PER_ROW - 2)]
    return [*first, ("…", f"{hidden + 1} more ranks"), chip(len(ranks) - 1)]


def _card(
    layout: Layout,
    index: int,
    height: float,
    rows: int,
    colours: dict[str, str],
    estimated: set[str],
    time: StageTime,
) -> Card:
    stage = layout.stages[index]
    x = _left(index)
    names = list(stage.layers)
    hidden = ""
    if len(names) > _LAYERS_SHOWN:
        between = names[_LAYERS_SHOWN - 2 : -1]
        hidden = ", ".join(between)
        names = [*names[: _LAYERS_SHOWN - 2], f"… {len(between)} more", names[-1]]
    top = TOP + HEAD + 14 + LINE * 0.7
    layers = [
        (
            top + i * LINE,
            fmt.shorten(name, 26),
            fmt.shorten(hidden, 600) if hidden and name.startswith("… ") else name,
        )
        for i, name in enumerate(names)
    ]
    chips_top = TOP + HEAD + 14 + rows * LINE + 10
    step = (CARD_WIDTH - 24) / _CHIPS_PER_ROW
    chips = [
        Chip(
            x + 12 + (i % _CHIPS_PER_ROW) * step,
            chips_top + (i // _CHIPS_PER_ROW) * (CHIP + 5),
            step - 4,
            text,
            tooltip,
        )
        for i, (text, tooltip) in enumerate(_chips_of(layout, index))
    ]
    roles = {layout.ranks[rank].role for rank in layout.stage_ranks(index)}
    ranks = fmt.plural(stage.num_ranks, "rank")
    mark = " (estimated)" if stage.pool in estimated else ""
    title = fmt.shorten(stage.pool, 22 - len(mark)) + mark
    subtitle = f"stage {index} · {ranks} · {'/'.join(sorted(roles))}"
    times = "" if time.predicted is None else f"predicted {fmt.seconds(time.predicted)} per batch"
    return Card(
        x,
        height,
        colours[stage.pool],
        title,
        fmt.shorten(subtitle, 38),
        layers,
        chips,
        times,
        TOP + height - 12,
        time.binds,
    )


def _arrows(run: Run, layout: Layout, height: float) -> tuple[list[Arrow], float]:
    """Arrows between neighbours through the gap, others below the cards."""
    arrows = []
    depth = 0.0
    for (source, target), tensors in sorted(_crossings(run, layout).items()):
        total = sum(size for _, size in tensors)
        tooltip = ", ".join(f"{name} ({fmt.size(size)})" for name, size in tensors)
        tooltip = f"stage {source} → stage {target}, per sample: {fmt.shorten(tooltip, 800)}"
        label = [fmt.shorten(name, 20) for name, _ in tensors[:_TENSORS_SHOWN]]
        if len(tensors) > _TENSORS_SHOWN:
            label.append(f"+ {len(tensors) - _TENSORS_SHOWN} more")
        sizes = f"{fmt.size(total)}/sample" if total else ""
        start, end = _left(source) + CARD_WIDTH, _left(target)
        if target == source + 1:
            y = TOP + height / 2
            middle = (start + end) / 2
            lines = [
                (middle, y - 10 - 15 * (len(label) - 1 - i), text) for i, text in enumerate(label)
            ]
            lines += [(middle, y + 20, sizes)] if sizes else []
            path = f"M{start + 6},{y} L{end - 9},{y}"
        else:
            level = 34.0 * (target - source - 1)
            depth = max(depth, level + 24)
            bottom = TOP + height
            start, end = start - CARD_WIDTH / 3, end + CARD_WIDTH / 3
            low = bottom + level + 22
            path = f"M{start},{bottom + 4} C{start},{low} {end},{low} {end},{bottom + 9}"
            text = ", ".join(label) + (f" · {sizes}" if sizes else "")
            lines = [((start + end) / 2, bottom + 0.75 * (level + 22) + 14, text)]
        arrows.append(Arrow(path, lines, tooltip))
    return arrows, depth


def _crossings(run: Run, layout: Layout) -> dict[tuple[int, int], list[tuple[str, float]]]:
    """Tensors (name, bytes per sample) between each pair of stages; one copy per reading stage."""
    crossings: dict[tuple[int, int], list[tuple[str, float]]] = {}
    stage_of = {layer: i for i, stage in enumerate(layout.stages) for layer in stage.layers}
    for tensor in run.profile.tensors if run.profile else ():
        source = stage_of.get(tensor.writer)
        targets = {stage_of.get(reader) for reader in tensor.readers} - {source, None}
        if source is None:
            continue
        for target in sorted(t for t in targets if t is not None):
            pair = crossings.setdefault((source, target), [])
            pair.append((tensor.name, tensor.bytes_per_sample))
    if not crossings:
        return {(i, i + 1): [] for i in range(len(layout.stages) - 1)}
    return crossings
