"""What must be true before training starts; pure, on what every rank knows of itself.

Every rank gets the information of all, so all come to the same outcome and none is left waiting.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from heterps_hpc.layout import Layout
from heterps_hpc.runtime.device import CPU, Visible, device_problem

# Where launchers let a rank know how many it is one of.
SIZE_VARIABLES = ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


@dataclass(frozen=True)
class RankInfo:
    """What one rank knows of itself."""

    rank: int
    component: int | None  # as the launcher placed it
    node: str
    allocated_nodes: tuple[str, ...] = ()  # of its component, where Slurm names them
    versions: Mapping[str, str] = field(default_factory=dict)  # of what it uses
    dataset: str = ""
    needed_bytes: int = 0  # of memory, for its shards
    free_bytes: int = 0  # of memory, that its node and its cgroup leave
    spill_bytes: int = 0  # of disk, for rows that do not stay in memory
    spill_free_bytes: int = 0
    devices: tuple[str, ...] = ()  # accelerators that it sees, by names that differ
    accelerators: str = ""  # the same for people


def world_problem(
    size: int, expected: int, environment: Mapping[str, str], library: str
) -> str | None:
    """Why the world has the wrong size, in one line."""
    if size == expected:
        return None
    seen = {name: environment[name] for name in SIZE_VARIABLES if name in environment}
    if size == 1 and (not seen or any(value != "1" for value in seen.values())):
        by = " and ".join(f"{name}={value}" for name, value in seen.items())
        return (
            f"every rank is alone in a world of its own, the layout has {expected}: the launcher "
            f"({by or 'none seen'}) does not speak to this MPI ({library}); use its own mpirun, or "
            "under Slurm `site.srun_mpi: pmi2` for MPICH and `pmix` for Open MPI"
        )
    return (
        f"the layout has {expected} ranks, MPI started {size}; start as many (`heterps launch` "
        "does), or plan again"
    )


def problems(infos: Sequence[RankInfo], layout: Layout) -> list[str]:
    """All that is wrong, most basic first; empty if the run may start."""
    return [
        *component_problems(infos, layout),
        *node_problems(infos, layout),
        *difference_problems(infos),
        *device_problems(infos, layout),
        *memory_problems(infos),
        *disk_problems(infos),
    ]


def component_problems(infos: Sequence[RankInfo], layout: Layout) -> list[str]:
    """Ranks that the launcher put into another component than the layout."""
    wrong = [
        (info.rank, info.component, layout.ranks[info.rank].component)
        for info in infos
        if info.component is not None and info.component != layout.ranks[info.rank].component
    ]
    return [
        f"rank {rank} was started in component {got}, the layout has it in {expected}; launch "
        "with the layout's own script, and do not change the order of its components"
        for rank, got, expected in wrong[:1]
    ]


def node_problems(infos: Sequence[RankInfo], layout: Layout) -> list[str]:
    """Ranks on a node that is not their component's, or more on one node than planned."""
    found = []
    for info in infos:
        if info.allocated_nodes and info.node not in info.allocated_nodes:
            pool = layout.components[layout.ranks[info.rank].component].pool
            found.append(
                f"rank {info.rank} of pool {pool!r} runs on {info.node}, its component has "
                f"{', '.join(info.allocated_nodes)}; launch with the layout's own script"
            )
    if not any(info.allocated_nodes for info in infos):
        return found  # one machine plays all nodes
    on_node = Counter((layout.ranks[info.rank].component, info.node) for info in infos)
    for (number, node), count in on_node.items():
        component = layout.components[number]
        if count > component.ranks_per_node:
            found.append(
                f"node {node} has {count} ranks of pool {component.pool!r}, the layout puts at "
                f"most {component.ranks_per_node} on a node; check `site.srun_options`"
            )
    return found


def difference_problems(infos: Sequence[RankInfo]) -> list[str]:
    """Versions or data that are not the same on all ranks."""
    found = []
    for what in dict.fromkeys(name for info in infos for name in info.versions):
        message = _difference(
            what, [(info, info.versions[what]) for info in infos if what in info.versions]
        )
        if message:
            found.append(f"{message}; give all nodes the same environment")
    message = _difference("the training data", [(info, info.dataset) for info in infos])
    if message:
        found.append(f"{message}; give all nodes the same copy of the data set")
    return found


def _difference(what: str, values_of: Sequence[tuple[RankInfo, str]]) -> str | None:
    values: dict[str, RankInfo] = {}
    for info, value in values_of:
        values.setdefault(value, info)
    if len(values) < 2:
        return None
    (one, first), (other, second) = list(values.items())[:2]
    return (
        f"{what} differs: {one} on rank {first.rank} ({first.node}), "
        f"{other} on rank {second.rank} ({second.node})"
    )


def device_problems(infos: Sequence[RankInfo], layout: Layout) -> list[str]:
    """Ranks of accelerator pools that see too few devices for the ranks of their node."""
    visible = [Visible(info.node, info.devices) for info in infos]
    found = []
    for info in infos:
        component = layout.components[layout.ranks[info.rank].component]
        if component.device == CPU:
            continue
        problem = device_problem(component.device, visible, info.rank)
        if problem is not None:
            found.append(f"rank {info.rank} of pool {component.pool!r} {problem}")
    return found[:1]


def memory_problems(infos: Sequence[RankInfo]) -> list[str]:
    """Nodes whose memory cannot hold the shards of their ranks."""
    found = []
    for node, members in _by_node(infos).items():
        needed = sum(info.needed_bytes for info in members)
        free = min(info.free_bytes for info in members)
        if needed > free:
            found.append(
                f"node {node} needs about {needed / 1e9:.1f} GB for the tables of ranks "
                f"{', '.join(str(info.rank) for info in members)} and has {free / 1e9:.1f} GB "
                "free; use more ranks or nodes, or tiers (`tables.hot_bytes`, `tables.spill_dir`)"
            )
    return found


def disk_problems(infos: Sequence[RankInfo]) -> list[str]:
    """Nodes whose local disk cannot hold the cold rows of their ranks."""
    found = []
    for node, members in _by_node(infos).items():
        needed = sum(info.spill_bytes for info in members)
        free = min(info.spill_free_bytes for info in members)
        if needed > free:
            found.append(
                f"node {node} needs about {needed / 1e9:.1f} GB in `tables.spill_dir` and has "
                f"{free / 1e9:.1f} GB free; choose another disk, or use more ranks or nodes"
            )
    return found


def _by_node(infos: Sequence[RankInfo]) -> dict[str, list[RankInfo]]:
    nodes: dict[str, list[RankInfo]] = defaultdict(list)
    for info in infos:
        nodes[info.node].append(info)
    return nodes


def expand_nodes(expression: str) -> tuple[str, ...]:
    """Node names of a Slurm expression such as `c[1-3,7],login` or `r[1-2]n[03-04]-ib`."""
    names: list[str] = []
    for item in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", expression):
        # text and the contents of brackets take turns
        parts = [
            _expand_ranges(part) if number % 2 else [part]
            for number, part in enumerate(re.split(r"\[([^\]]*)\]", item))
        ]
        names += ("".join(choice) for choice in product(*parts))
    return tuple(names)


def _expand_ranges(ranges: str) -> list[str]:
    """The numbers of `01-03,7`, as wide as they are written."""
    numbers: list[str] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        width = len(first)
        numbers += (f"{number:0{width}d}" for number in range(int(first), int(last or first) + 1))
    return numbers
