"""Memory that this process can still get: what its node has, or what a limit leaves of it.

Slurm's `--mem` and a container's limit are limits of a cgroup, and a process beyond one is killed,
however much memory its node has.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

_VERSION_2 = ("memory.max", "memory.current")
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def free_memory(root: Path = Path("/")) -> int:
    """Bytes; the least that the node and each cgroup around this process leave."""
    of_the_node: int = psutil.virtual_memory().available
    return min([of_the_node, *_left_in_cgroups(root)])


def _left_in_cgroups(root: Path) -> Iterator[int]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        group = top / path.lstrip("/")  # in a container it may be mounted as the top itself
        for folder in (group, *group.parents):
            left = _left(folder, *(_VERSION_1 if controllers else _VERSION_2))
            if left is not None:
                yield left
            if folder == top:
                break


def _left(folder: Path, limit_file: str, usage_file: str) -> int | None:
    """What the limit of a cgroup leaves; None if it has none."""
    limit, usage = _text(folder / limit_file).strip(), _text(folder / usage_file).strip()
    if not (limit.isdigit() and usage.isdigit()):
        return None
    stat = dict(line.split(maxsplit=1) for line in _text(folder / "memory.stat").splitlines())
    cache = sum(int(stat.get(name, 0)) for name in ("inactive_file", "active_file"))
    return max(0, int(limit) - int(usage) + cache)  # the kernel drops cached files first


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # not there, or not for us
        return ""
