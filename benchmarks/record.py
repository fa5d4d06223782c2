"""What every benchmark shares: records that judge themselves, fair timing, one output format."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.memory_probe import memory_costs


@dataclass(frozen=True)
class Record:
    """One measured value. With a goal ("<= 10" or ">= 4") it says itself if it meets it."""

    name: str
    value: float
    unit: str
    goal: str | None = None

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        relation, _, limit = self.goal.partition(" ")
        if relation not in ("<=", ">="):
            raise ValueError(
                f"goal of {self.name!r} must be '<= NUMBER' or '>= NUMBER', got {self.goal!r}"
            )
        bound = float(limit)
        return self.value <= bound if relation == "<=" else self.value >= bound


@dataclass(frozen=True)
class Grid:
    """Values without goals that are read side by side: a row for each thing, its name first."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float, ...], ...]

    def cells(self) -> list[list[str]]:
        """Rows as they are printed."""
        return [[x if isinstance(x, str) else format_value(x) for x in row] for row in self.rows]


def _arguments() -> str:
    """What was asked for, without where the results went."""
    words = [word for word in sys.argv[1:] if not word.startswith("--json=")]
    if "--json" in words:
        at = words.index("--json")
        del words[at : at + 2]
    return " ".join(words)


@dataclass
class Report:
    """The records of one benchmark, with what is needed to read them later."""

    benchmark: str
    title: str
    records: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    pictures: dict[str, str] = field(default_factory=dict)  # file beside the JSON, and what it is

    def add(self, name: str, value: float, unit: str, goal: str | None = None) -> None:
        self.records.append(Record(name, value, unit, goal))

    def to_json(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "title": self.title,
            "command": f"python -m benchmarks.{self.benchmark} {_arguments()}".strip(),
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "machine": machine(),
            "notes": self.notes,
            "records": [{**asdict(r), "met": r.met} for r in self.records],
            **({"grids": [asdict(grid) for grid in self.grids]} if self.grids else {}),
            **({"pictures": self.pictures} if self.pictures else {}),
        }

    def show(self) -> None:
        table = Table("measure", "value", "unit", "goal", "met", title=self.title)
        words = {None: "", True: "yes", False: "[red]no[/red]"}
        for r in self.records:
            table.add_row(r.name, format_value(r.value), r.unit, r.goal or "", words[r.met])
        console = Console()
        console.print(table)
        wide = Console(width=max(console.width, 120))
        for grid in self.grids:
            shown = Table(title=grid.title, title_justify="left")
            for place, name in enumerate(grid.columns):
                shown.add_column(name, justify="right" if place else "left")
            for row in grid.cells():
                shown.add_row(*row)
            wide.print(shown)
        for note in self.notes:
            console.print(note)

    def finish(self, json_path: Path | None) -> None:
        self.show()
        if json_path is not None:
            json_path.parent.mkdir(parents=True, exist_ok=True)
            json_path.write_text(json.dumps(self.to_json(), indent=1) + "\n")


def report(
    benchmark: str, records: Sequence[Record], json_path: Path | None, title: str | None = None
) -> None:
    """Print the records of a benchmark, and write them where asked."""
    Report(benchmark, title or benchmark, list(records)).finish(json_path)


def format_value(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


_WIDE = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile")


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    about = {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in _lines("/proc/cpuinfo"))
    }
    memory = next((ln.split()[1] for ln in _lines("/proc/meminfo") if "MemTotal" in ln), "0")
    return {
        "processor": about.get("model name", platform.processor()),
        "instruction_sets": [x for x in _WIDE if x in about.get("flags", "").split()],
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory) / 2**20, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "memory": memory_costs(),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def alternating_medians(
    work: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 1
) -> dict[str, float]:
    """Median seconds of each piece of work, all in turn, so that noise falls on all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(warmup + repeats):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def pin_to_cores(cores: Sequence[int]) -> None:
    """Keep this process on the given cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(cores) & os.sched_getaffinity(0) or os.sched_getaffinity(0))


def standard_options(description: str | None) -> argparse.ArgumentParser:
    """The two options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a named subset, within 45 s")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write records")
    return parser
