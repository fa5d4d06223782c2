"""What memory costs on this host: first touch, and a random cache line, by size of page.

A ratio between two programs may be a ratio between their pages: on one host a walk of 4 KiB pages
costs little, on the next several times the work itself.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
from pathlib import Path
from typing import Any

_BYTES = 256 << 20
_READS = 1_000_000


class _Probe(ctypes.Structure):
    _fields_ = (
        ("first_touch_gb_per_s", ctypes.c_double),
        ("dependent_line_ns", ctypes.c_double),
        ("overlapped_line_ns", ctypes.c_double),
    )


def compiled(source: str) -> ctypes.CDLL:
    """A C++ file of this folder as a library."""
    path = Path(__file__).with_name(source)
    library = Path("build/bench") / path.with_suffix(".so").name
    library.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-O3", "-march=native", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, "-o", str(library), str(path)], check=True)
    return ctypes.CDLL(str(library.resolve()))


@functools.cache
def memory_costs() -> dict[str, Any]:
    """By size of page; empty where there is no compiler."""
    try:
        library = compiled("memory_probe.cpp")
    except (OSError, subprocess.CalledProcessError):
        return {}
    costs: dict[str, Any] = {"transparent_huge_pages": _huge_page_setting()}
    for name, huge in (("4 KiB", 0), ("2 MiB", 1)):
        probe = _Probe()
        sizes = ctypes.c_uint64(_BYTES), ctypes.c_uint64(_READS)
        if library.probe(ctypes.c_int(huge), *sizes, ctypes.byref(probe)) == 0:
            costs[name] = {field: round(getattr(probe, field), 2) for field, _ in probe._fields_}
    return costs


def _huge_page_setting() -> str:
    try:
        words = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().split()
    except OSError:
        return "unknown"
    return next((word.strip("[]") for word in words if word.startswith("[")), "unknown")


def anon_huge_bytes() -> int:
    """Of this process: how much of its memory lies on huge pages."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    return 0
