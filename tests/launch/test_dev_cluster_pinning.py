"""Unlike nodes stay on one core each, where their quotas allow it."""

import pytest

from slurm.dev_cluster.nodes_file import find_nodes_file, load_nodes
from slurm.dev_cluster.pinning import assign_cores
from slurm.dev_cluster.spec import NODES, Node


def nodes(*cores: float) -> list[Node]:
    return [Node.limited(f"n{i}", "p", c, 1000, None) for i, c in enumerate(cores)]


@pytest.mark.parametrize("name", ["slow-and-fast", "thin-pipe", "three-kinds", "two-and-two"])
def test_shipped_clusters_fit_on_two_cores(name: str) -> None:
    shipped = load_nodes(find_nodes_file(name)).nodes
    found = assign_cores(shipped, [0, 1])
    assert set(found) == {node.name for node in shipped}
    for core in (0, 1):
        quotas = [n.limits.cores for n in shipped if n.limits and found[n.name] == core]
        assert sum(quotas) <= 1 + 1e-9


@pytest.mark.parametrize("cores", [(0.6, 0.6, 0.6), (1.5,), (1.0, 0.9, 0.2)])
def test_what_fits_on_no_core_is_free_to_move(cores: tuple[float, ...]) -> None:
    assert assign_cores(nodes(*cores), [0, 1]) == {}


def test_nodes_without_a_quota_have_no_core() -> None:
    assert assign_cores(NODES, [0, 1]) == {}
