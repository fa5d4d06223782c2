"""The plan as a picture: stages in a row (on phones a column), their ranks, the tensors between."""

from __future__ import annotations

from dataclasses import dataclass, field

from heterps_hpc import format as fmt
from heterps_hpc.layout import Layout
from heterps_hpc.report.inputs import RecordedRun
from heterps_hpc.report.outcome import estimated_pools
from heterps_hpc.report.phases import StageTime, stage_times

POOL_COLOURS = ("#2f5fd0", "#157a63", "#c2571a", "#7352c7", "#b03a6f", "#6b7a12", "#2a7f9e")
CARD_WIDTH = 208
GAP = 148
GAP_BELOW = 58
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
    """One stage; what it holds counts from its own corner."""

    x: float
    y: float
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
    anchor: str = "middle"  # of the text


@dataclass(frozen=True)
class Picture:
    """What the template draws."""

    name: str  # for ids
    width: float
    height: float
    cards: list[Card] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)  # colour, pool


def draw(run: RecordedRun, *, vertical: bool = False) -> Picture | None:
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
        _card(layout, i, _corner(i, height, vertical), height, rows, colours, estimated, time)
        for i, time in zip(_stages(layout), stage_times(run), strict=True)
    ]
    crossings = sorted(_crossings(run, layout).items())
    arrow = _arrow_down if vertical else _arrow_right
    arrows = [arrow(source, target, tensors, height) for (source, target), tensors in crossings]
    width, total_height = _extent(len(cards), height, [pair for pair, _ in crossings], vertical)
    legend = [
        (colours[pool], pool + (" (estimated)" if pool in estimated else "")) for pool in pools
    ]
    name = "column" if vertical else "row"
    return Picture(name, width, total_height, cards, arrows, legend)


def _stages(layout: Layout) -> range:
    return range(len(layout.stages))


def _corner(stage: int, height: float, vertical: bool) -> tuple[float, float]:
    if vertical:
        return 2, TOP + stage * (height + GAP_BELOW)
    return 2 + stage * (CARD_WIDTH + GAP), TOP


def _extent(
    num_cards: int, height: float, crossings: list[tuple[int, int]], vertical: bool
) -> tuple[float, float]:
    """Width and height of the picture, with what passes by the cards."""
    passes = max((_passing(source, target) for source, target in crossings), default=0.0)
    x, y = _corner(num_cards - 1, height, vertical)
    aside, below = (passes + 90 if passes else 0, 0.0) if vertical else (0.0, passes)
    return x + CARD_WIDTH + aside + 2, y + height + below + 6


def _passing(source: int, target: int) -> float:
    """How far from the cards an arrow runs that skips some."""
    skipped = target - source - 1
    return 34.0 * skipped + 24 if skipped else 0.0


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
    corner: tuple[float, float],
    height: float,
    rows: int,
    colours: dict[str, str],
    estimated: set[str],
    time: StageTime,
) -> Card:
    stage = layout.stages[index]
    roles = {layout.ranks[rank].role for rank in layout.stage_ranks(index)}
    ranks = fmt.plural(stage.num_ranks, "rank")
    title = fmt.shorten(stage.pool, 15 if time.binds else 22)  # the slowest has a badge next to it
    subtitle = f"stage {index} · {ranks} · {'/'.join(sorted(roles))}"
    known = "estimated" if stage.pool in estimated else "predicted"
    times = "" if time.predicted is None else f"{known} {fmt.seconds(time.predicted)} per batch"
    return Card(
        *corner,
        height,
        colours[stage.pool],
        title,
        fmt.shorten(subtitle, 38),
        _layer_lines(list(stage.layers)),
        _chips(layout, index, HEAD + 14 + rows * LINE + 10),
        times,
        height - 12,
        time.binds,
    )


def _layer_lines(names: list[str]) -> list[tuple[float, str, str]]:
    """Height, text and tooltip of each line; the middle of a long list shares one."""
    hidden = ""
    if len(names) > _LAYERS_SHOWN:
        between = names[_LAYERS_SHOWN - 2 : -1]
        hidden = ", ".join(between)
        names = [*names[: _LAYERS_SHOWN - 2], f"… {len(between)} more", names[-1]]
    top = HEAD + 14 + LINE * 0.7
    return [
        (
            top + i * LINE,
            fmt.shorten(name, 26),
            fmt.shorten(hidden, 600) if hidden and name.startswith("… ") else name,
        )
        for i, name in enumerate(names)
    ]


def _chips(layout: Layout, index: int, top: float) -> list[Chip]:
    """One per rank of the stage, in rows."""
    step = (CARD_WIDTH - 24) / _CHIPS_PER_ROW
    return [
        Chip(
            12 + (i % _CHIPS_PER_ROW) * step,
            top + (i // _CHIPS_PER_ROW) * (CHIP + 5),
            step - 4,
            text,
            tooltip,
        )
        for i, (text, tooltip) in enumerate(_chips_of(layout, index))
    ]


Tensors = list[tuple[str, float]]  # name, bytes per sample


def _label(tensors: Tensors) -> tuple[list[str], str]:
    """Names that are shown, and the bytes of a sample in all."""
    names = [fmt.shorten(name, 20) for name, _ in tensors[:_TENSORS_SHOWN]]
    if len(tensors) > _TENSORS_SHOWN:
        names.append(f"+ {len(tensors) - _TENSORS_SHOWN} more")
    total = sum(size for _, size in tensors)
    return names, f"{fmt.size(total)}/sample" if total else ""


def _tooltip(source: int, target: int, tensors: Tensors) -> str:
    listed = ", ".join(f"{name} ({fmt.size(size)})" for name, size in tensors)
    return f"stage {source} → stage {target}, per sample: {fmt.shorten(listed, 800)}"


def _arrow_right(source: int, target: int, tensors: Tensors, height: float) -> Arrow:
    """Between neighbours through the gap, others below the cards."""
    names, sizes = _label(tensors)
    start = _corner(source, height, False)[0] + CARD_WIDTH
    end = _corner(target, height, False)[0]
    tooltip = _tooltip(source, target, tensors)
    if target == source + 1:
        y = TOP + height / 2
        middle = (start + end) / 2
        lines = [(middle, y - 10 - 15 * (len(names) - 1 - i), text) for i, text in enumerate(names)]
        lines += [(middle, y + 20, sizes)] if sizes else []
        return Arrow(f"M{start + 6},{y} L{end - 9},{y}", lines, tooltip)
    bottom = TOP + height
    start, end = start - CARD_WIDTH / 3, end + CARD_WIDTH / 3
    low = bottom + _passing(source, target) - 2
    path = f"M{start},{bottom + 4} C{start},{low} {end},{low} {end},{bottom + 9}"
    text = " · ".join(part for part in (", ".join(names), sizes) if part)
    return Arrow(path, [((start + end) / 2, bottom + 0.75 * (low - bottom) + 14, text)], tooltip)


def _arrow_down(source: int, target: int, tensors: Tensors, height: float) -> Arrow:
    """Between neighbours through the gap, others to the right of the cards."""
    names, sizes = _label(tensors)
    x, start = _corner(source, height, True)
    end = _corner(target, height, True)[1]
    tooltip = _tooltip(source, target, tensors)
    if target == source + 1:
        middle = x + CARD_WIDTH / 3
        y = (start + height + end) / 2
        lines = [(middle + 12, y - 4, fmt.shorten(", ".join(names), 24))]
        lines += [(middle + 12, y + 11, sizes)] if sizes else []
        path = f"M{middle},{start + height + 4} L{middle},{end - 9}"
        return Arrow(path, lines, tooltip, "start")
    right = x + CARD_WIDTH
    first, last = start + 0.7 * height, end + 0.3 * height
    far = right + _passing(source, target)
    path = f"M{right + 4},{first} C{far},{first} {far},{last} {right + 9},{last}"
    text = fmt.shorten(sizes or ", ".join(names), 14)
    place = right + 0.75 * (far - right) + 8
    return Arrow(path, [(place, (first + last) / 2, text)], tooltip, "start")


def _crossings(run: RecordedRun, layout: Layout) -> dict[tuple[int, int], Tensors]:
    """Tensors (name, bytes per sample) between each pair of stages; one copy per reading stage."""
    crossings: dict[tuple[int, int], Tensors] = {}
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
