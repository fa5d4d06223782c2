"""What must be true before training starts; pure, on facts that every rank told.

Every rank gets the facts of all, so all come to the same verdict and none is left waiting.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from heterps_hpc.layout import Layout

# Where launchers tell a rank how many it is one of.
SIZE_VARIABLES = ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


@dataclass(frozen=True)
class Facts:
    """What one rank knows of itself."""

    rank: int
    component: int | None  # as the launcher told it
    node: str
    allocated_nodes: tuple[str, ...] = ()  # of its component, where Slurm tells
    versions: Mapping[str, str] = field(default_factory=dict)
    dataset: str = ""
    needed_bytes: int = 0  # of memory, for its shards
    free_bytes: int = 0  # of memory, on its node
    spill_bytes: int = 0  # of disk, for rows that do not stay in memory
    spill_free_bytes: int = 0
    devices: tuple[str, ...] = ()  # CUDA devices that it sees, by their own names


def world_problem(
    size: int, expected: int, environment: Mapping[str, str], library: str
) -> str | None:
    """Why the world has the wrong size, in one line."""
    if size == expected:
        return None
    told = {name: environment[name] for name in SIZE_VARIABLES if name in environment}
    if size == 1 and (not told or any(value != "1" for value in told.values())):
        by = " and ".join(f"{name}={value}" for name, value in told.items())
        return (
            f"every rank is alone in a world of its own, the layout has {expected}: the launcher "
            f"({by or 'none seen'}) does not speak to this MPI ({library}); use its own mpirun, or "
            "under Slurm `site.srun_mpi: pmi2` for MPICH and `pmix` for Open MPI"
        )
    return (
        f"the layout has {expected} ranks, MPI started {size}; start as many (`heterps launch` "
        "does), or plan again"
    )


def problems(facts: Sequence[Facts], layout: Layout) -> list[str]:
    """All that is wrong, most basic first; empty if the run may start."""
    return [
        *component_problems(facts, layout),
        *node_problems(facts, layout),
        *difference_problems(facts),
        *device_problems(facts, layout),
        *memory_problems(facts),
        *disk_problems(facts),
    ]


def component_problems(facts: Sequence[Facts], layout: Layout) -> list[str]:
    """Ranks that the launcher put into another component than the layout."""
    wrong = [
        (fact.rank, fact.component, layout.ranks[fact.rank].component)
        for fact in facts
        if fact.component is not None and fact.component != layout.ranks[fact.rank].component
    ]
    return [
        f"rank {rank} was started in component {got}, the layout has it in {expected}; launch "
        "with the layout's own script, and do not change the order of its components"
        for rank, got, expected in wrong[:1]
    ]


def node_problems(facts: Sequence[Facts], layout: Layout) -> list[str]:
    """Ranks on a node that is not their component's, or more on one node than planned."""
    found = []
    for fact in facts:
        if fact.allocated_nodes and fact.node not in fact.allocated_nodes:
            pool = layout.components[layout.ranks[fact.rank].component].pool
            found.append(
                f"rank {fact.rank} of pool {pool!r} runs on {fact.node}, its component has "
                f"{', '.join(fact.allocated_nodes)}; launch with the layout's own script"
            )
    if not any(fact.allocated_nodes for fact in facts):
        return found  # one machine plays all nodes
    on_node = Counter((layout.ranks[fact.rank].component, fact.node) for fact in facts)
    for (number, node), count in on_node.items():
        component = layout.components[number]
        if count > component.ranks_per_node:
            found.append(
                f"node {node} has {count} ranks of pool {component.pool!r}, the layout puts at "
                f"most {component.ranks_per_node} on a node; check `site.srun_options`"
            )
    return found


def difference_problems(facts: Sequence[Facts]) -> list[str]:
    """Versions or data that are not the same on all ranks."""
    found = []
    for what in facts[0].versions:
        message = _difference(what, [(fact, fact.versions.get(what, "none")) for fact in facts])
        if message:
            found.append(f"{message}; give all nodes the same environment")
    message = _difference("the training data", [(fact, fact.dataset) for fact in facts])
    if message:
        found.append(f"{message}; give all nodes the same copy of the data set")
    return found


def _difference(what: str, told: Sequence[tuple[Facts, str]]) -> str | None:
    values: dict[str, Facts] = {}
    for fact, value in told:
        values.setdefault(value, fact)
    if len(values) < 2:
        return None
    (one, first), (other, second) = list(values.items())[:2]
    return (
        f"{what} differs: {one} on rank {first.rank} ({first.node}), "
        f"{other} on rank {second.rank} ({second.node})"
    )


def device_index(facts: Sequence[Facts], rank: int) -> int:
    """Which of the devices that a rank sees is its own: ranks that see the same ones take turns."""
    mine = facts[rank]
    before = (fact for fact in facts[:rank] if fact.node == mine.node)
    return sum(fact.devices == mine.devices for fact in before)


def device_problems(facts: Sequence[Facts], layout: Layout) -> list[str]:
    """Ranks of CUDA pools that see too few devices for the ranks of their node."""
    found = []
    for fact in facts:
        component = layout.components[layout.ranks[fact.rank].component]
        index = device_index(facts, fact.rank)
        if component.device == "cuda" and index >= len(fact.devices):
            found.append(
                f"rank {fact.rank} of pool {component.pool!r} on {fact.node} would take CUDA "
                f"device {index} but sees {len(fact.devices)}; ask for more GPUs "
                "(`gpus_per_node`, `slurm.gres`), or install a CUDA build of torch"
            )
    return found[:1]


def memory_problems(facts: Sequence[Facts]) -> list[str]:
    """Nodes whose memory cannot hold the shards of their ranks."""
    found = []
    for node, members in _by_node(facts).items():
        needed = sum(fact.needed_bytes for fact in members)
        free = min(fact.free_bytes for fact in members)
        if needed > free:
            found.append(
                f"node {node} needs about {needed / 1e9:.1f} GB for the tables of ranks "
                f"{', '.join(str(fact.rank) for fact in members)} and has {free / 1e9:.1f} GB "
                "free; use more ranks or nodes, or tiers (`tables.hot_bytes`, `tables.spill_dir`)"
            )
    return found


def disk_problems(facts: Sequence[Facts]) -> list[str]:
    """Nodes whose local disk cannot hold the cold rows of their ranks."""
    found = []
    for node, members in _by_node(facts).items():
        needed = sum(fact.spill_bytes for fact in members)
        free = min(fact.spill_free_bytes for fact in members)
        if needed > free:
            found.append(
                f"node {node} needs about {needed / 1e9:.1f} GB in `tables.spill_dir` and has "
                f"{free / 1e9:.1f} GB free; choose another disk, or use more ranks or nodes"
            )
    return found


def _by_node(facts: Sequence[Facts]) -> dict[str, list[Facts]]:
    nodes: dict[str, list[Facts]] = defaultdict(list)
    for fact in facts:
        nodes[fact.node].append(fact)
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
