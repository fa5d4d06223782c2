"""Which of the host's cores each unlike node runs on.

A kernel hands a CPU quota out to one core after the other, in slices longer than the quota of a
small node: a process that changes cores leaves a part of it behind, and its node is slower than it
should be, now more and now less. Nodes that stay on a core get what they were promised.
"""

import os
from collections.abc import Sequence

from slurm.dev_cluster.spec import Node

ROUNDING = 1e-9


def assign_cores(nodes: Sequence[Node], cores: Sequence[int]) -> dict[str, int]:
    """A core for every node with limits, the largest first, to the core that is left with most.

    Empty if they do not fit so: a node above one core, or quotas that no core has left.
    """
    left = dict.fromkeys(cores, 1.0)
    found = {}
    limited = [(node.limits.cores, node.name) for node in nodes if node.limits is not None]
    for quota, name in sorted(limited, key=lambda item: (-item[0], item[1])):
        core = max(left, key=lambda each: (left[each], -each))
        if quota > left[core] + ROUNDING:
            return {}
        left[core] -= quota
        found[name] = core
    return found


def pinned(nodes: Sequence[Node], name: str) -> list[str]:
    """Words before the command that starts a node."""
    core = assign_cores(nodes, sorted(os.sched_getaffinity(0))).get(name)
    return [] if core is None else ["taskset", "--cpu-list", str(core)]
