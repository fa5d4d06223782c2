"""Writes RESULTS.md from the JSON files of all benchmarks: `python -m benchmarks.render`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.record import Grid, format_value

HERE = Path(__file__).parent
HEAD = """# Results

Made by `python -m benchmarks.render` from benchmarks/results/*.json; each section names the
command that makes its figures again. A goal that is missed says so.
"""


def memory_of(machine: dict[str, Any]) -> str:
    """What a random line and a first touch cost there, for comparison with other hosts."""
    costs = machine.get("memory", {})
    pages = [
        f"on pages of {size} a random cache line costs {of['dependent_line_ns']:.0f} ns, one of "
        f"many at once {of['overlapped_line_ns']:.0f} ns, and first touch is "
        f"{of['first_touch_gb_per_s']:.1f} GB/s"
        for size, of in costs.items()
        if isinstance(of, dict)
    ]
    if not pages:
        return ""
    wide = ", ".join(machine.get("instruction_sets", [])) or "not recorded"
    huge = costs["transparent_huge_pages"]
    return f"Its memory: {'; '.join(pages)}. Huge pages: {huge}. Instruction sets: {wide}."


def render(result: dict[str, Any]) -> str:
    """One benchmark as a section of Markdown."""
    machine = result.get("machine", {})
    where = (
        f"{machine.get('processor', 'unknown processor')}, {machine.get('cores', '?')} cores, "
        f"{machine.get('memory_gib', '?')} GiB, {machine.get('system', '')}, "
        f"Python {machine.get('python', '?')}"
    )
    lines = [
        f"## {result['title']}",
        "",
        f"`{result['command']}`, {result['date']}, {where}",
        *(["", memory] if (memory := memory_of(machine)) else []),
        "",
        "| measure | value | unit | goal | met |",
        "|---|--:|---|---|---|",
    ]
    words = {None: "", True: "yes", False: "**no**"}
    for r in result["records"]:
        goal = r.get("goal") or ""
        met = words[r.get("met")]
        lines.append(f"| {r['name']} | {format_value(r['value'])} | {r['unit']} | {goal} | {met} |")
    lines.extend(["", *(f"{note}\n" for note in result.get("notes", []))])
    for file, what in result.get("pictures", {}).items():
        lines.append(f"![{what}](results/{file})\n")
    for grid in result.get("grids", []):
        lines.extend(render_grid(Grid(grid["title"], grid["columns"], grid["rows"])))
    return "\n".join(lines).rstrip() + "\n"


def render_grid(grid: Grid) -> list[str]:
    """Its title and a table of Markdown."""
    rows = [grid.columns, ["---", *["--:"] * (len(grid.columns) - 1)], *grid.cells()]
    return [f"{grid.title}\n", *(f"| {' | '.join(row)} |" for row in rows), ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    options = parser.parse_args()
    files = sorted(options.results.glob("*.json"))
    sections = [render(json.loads(path.read_text())) for path in files]
    options.out.write_text("\n".join([HEAD, *sections]))


if __name__ == "__main__":
    main()
