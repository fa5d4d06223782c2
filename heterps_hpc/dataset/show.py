"""Prints a dataset for people: `heterps data info` and `heterps data head`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterps_hpc import format as fmt
from heterps_hpc.dataset.columns import Keys
from heterps_hpc.dataset.manifest import EXACT_KEYS, DatasetManifest
from heterps_hpc.dataset.read.dataset import ColumnSelection, Dataset, Verify
from heterps_hpc.dataset.read.order import Order
from heterps_hpc.dataset.read.reader import Batch, Reader
from heterps_hpc.errors import UserError

_MAX_KEYS_SHOWN = 4


def info(path: Path | str, verify: Verify = "sizes", console: Console | None = None) -> None:
    """Print what a dataset holds."""
    dataset = Dataset.open(path, verify)
    console = console or Console(highlight=False)
    console.print(_summary(dataset, verify))
    console.print(_slot_table(dataset.manifest))


def _summary(dataset: Dataset, verify: Verify) -> Table:
    manifest = dataset.manifest
    table = Table(title=manifest.name, show_header=False)
    table.add_column("what")
    table.add_column("value", overflow="fold")
    ratio = manifest.raw_bytes / max(manifest.num_stored_bytes, 1)
    saved = "" if manifest.compression == "none" else f", ratio {ratio:.2f}"
    for what, value in (
        ("path", str(dataset.path)),
        ("rows", f"{manifest.num_rows:,}"),
        ("shards", f"{len(manifest.shards):,}, {manifest.block_rows:,} rows per block"),
        ("size", fmt.size(manifest.num_stored_bytes)),
        ("compression", manifest.compression + saved),
        ("dense columns", _names(manifest.dense_columns)),
        ("weight, group", f"{_yes(manifest.has_weight)}, {_yes(manifest.has_group)}"),
        ("made by", str(manifest.made.get("by", "unknown"))),
        ("fingerprint", manifest.fingerprint()),
        ("checked", f"{verify} of all files agree with the manifest"),
    ):
        table.add_row(what, value)
    for label, mean in zip(manifest.labels, manifest.label_means, strict=True):
        table.add_row(f"label {label}", f"mean {mean:.5f}{_range(manifest, label)}")
    return table


def _range(manifest: DatasetManifest, label: str) -> str:
    if manifest.label_ranges is None:
        return ""
    least, largest = manifest.label_ranges[manifest.labels.index(label)]
    return f", from {least:g} to {largest:g}"


def _slot_table(manifest: DatasetManifest) -> Table:
    table = Table(title=f"{len(manifest.slots)} slots")
    table.add_column("slot")
    table.add_column("kind")
    table.add_column("distinct keys", justify="right")
    table.add_column("keys per sample", justify="right")
    table.add_column("missing", justify="right")
    for slot in manifest.slots:
        kind = slot.kind + (", weighted" if slot.weighted else "")
        missing = "" if slot.missing_rate is None else fmt.percent(slot.missing_rate, 2)
        table.add_row(slot.name, kind, _count(slot.cardinality), f"{slot.mean_keys:.2f}", missing)
    return table


class ValuesLike(Protocol):
    """Knows the raw values behind keys and numbers, as far as there is a way back."""

    def key(self, slot: str, key: int) -> str | None:
        """The raw value of a key, if it is known."""

    def number(self, column: str, value: float) -> float:
        """The raw number of a dense column."""


def head(
    path: Path | str,
    rows: int = 5,
    console: Console | None = None,
    originals: Callable[[DatasetManifest], ValuesLike] | None = None,
) -> None:
    """Print the first rows of a dataset: raw values where they are known, else keys."""
    if rows < 1:
        raise UserError(f"cannot show {rows} rows; ask for at least one")
    dataset = Dataset.open(path)
    console = console or Console(highlight=False)
    manifest = dataset.manifest
    slots = tuple(slot.name for slot in manifest.slots)
    selection = ColumnSelection(
        slots, bool(manifest.dense_columns), bool(manifest.labels), manifest.has_weight
    )
    order = Order(dataset, min(rows, manifest.num_rows), shuffle=False, window_rows=1)
    with Reader(dataset, order, selection, num_epochs=1, read_ahead=1) as reader:
        known = None if originals is None else originals(manifest)
        lines = _head_lines(manifest, next(reader), known)
    ids = dataset.ids(0, rows)
    if ids is not None:
        lines.append([f"id {manifest.id_column}", *map(str, ids)])
    count = len(lines[0]) - 1
    console.print(f"{manifest.name}: first {count} of {manifest.num_rows:,} rows", markup=False)
    for table in _side_by_side(lines, console.width):
        console.print(table)


def _side_by_side(lines: list[list[str]], width: int) -> Iterator[Table]:
    """Tables of as many samples as fit next to each other, none of whose words is cut."""
    names = max(len(line[0]) for line in lines)
    widths = [
        max(len(word) for line in lines for word in (*line[row].split(), f"row {row}"))
        for row in range(1, len(lines[0]))
    ]
    first = 0
    while first < len(widths):
        last, used = first, names + 4
        while last < len(widths) and (last == first or used + widths[last] + 3 <= width):
            used += widths[last] + 3
            last += 1
        table = Table()
        table.add_column("column", no_wrap=True)
        for row in range(first, last):
            table.add_column(f"row {row}", justify="right", overflow="fold", min_width=widths[row])
        for line in lines:
            table.add_row(*map(Text, (line[0], *line[first + 1 : last + 1])))
        yield table
        first = last


def _head_lines(
    manifest: DatasetManifest, batch: Batch, known: ValuesLike | None
) -> list[list[str]]:
    """A line for each feature, with its name and then its value in every sample."""
    count = len(batch.sample_ids)
    lines = []
    for kind, names, matrix in (
        ("label", manifest.labels, batch.labels),
        ("dense", manifest.dense_columns, batch.dense),
    ):
        for place, name in enumerate(names):
            assert matrix is not None
            values = matrix[:, place].tolist()
            if known is not None and kind == "dense":
                values = [known.number(name, value) for value in values]
            lines.append([f"{kind} {name}", *(f"{value:.6g}" for value in values)])
    if batch.weight is not None:
        lines.append(["weight", *(f"{value:.6g}" for value in batch.weight)])
    for name, keys in batch.slots.items():
        cells = (_keys_text(keys.cut(row, row + 1), name, known) for row in range(count))
        lines.append([f"slot {name}", *cells])
    return lines


def _count(cardinality: int) -> str:
    """Larger numbers of distinct keys are estimates."""
    return f"{'≈ ' if cardinality > EXACT_KEYS else ''}{cardinality:,}"


def _keys_text(keys: Keys, slot: str, known: ValuesLike | None) -> str:
    found = [int(key) for key in keys.keys[:_MAX_KEYS_SHOWN]]
    values = [None if known is None else known.key(slot, key) for key in found]
    shown = " ".join(
        f"{key:016x}" if value is None else value for key, value in zip(found, values, strict=True)
    )
    return shown + (" …" if len(keys.keys) > _MAX_KEYS_SHOWN else "")


def _names(names: list[str] | tuple[str, ...]) -> str:
    shown = ", ".join(names[:20])
    return f"{len(names)}: {shown}" + (" …" if len(names) > 20 else "") if names else "none"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
