"""Nodes that really differ: what a file of them may say, and what the kernel then enforces."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heterps_hpc.cluster import Cluster as Pools
from slurm.dev_cluster.cgroups import Cgroups
from slurm.dev_cluster.cluster import DevCluster, missing_programs, why_not_unlike
from slurm.dev_cluster.config import hosts, slurm_conf
from slurm.dev_cluster.guard import guarded
from slurm.dev_cluster.network import Network
from slurm.dev_cluster.nodes_file import SHIPPED, crowding, find_nodes_file, load_nodes
from slurm.dev_cluster.processes import running, signal_all
from slurm.dev_cluster.spec import ClusterError, ClusterSpec, Node
from tests.slurm.client import SlurmClient
from tests.slurm.conftest import free_ports

ROOT = Path(__file__).resolve().parents[2]
FILE = """
nodes:
  s1: {partition: slow, cores: 0.2, memory_mb: 1000}
  f1: {partition: fast, cores: 1.5, memory_mb: 2000}
links: {s1: 200}
pools: {slow: {price_per_hour: 0.04}, fast: {price_per_hour: 0.4}}
"""


def load(tmp_path: Path, text: str, num_cores: int = 2) -> object:
    file = tmp_path / "own.yaml"
    file.write_text(text)
    return load_nodes(file, num_cores)


def test_file_of_nodes(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(FILE)
    found = load_nodes(file, 2)
    assert found.name == "own"
    slow = Node.limited("s1", "slow", 0.2, 1000, 200.0)
    assert found.nodes == (slow, Node.limited("f1", "fast", 1.5, 2000, None))
    assert [node.num_cpus for node in found.nodes] == [1, 2]
    (tmp_path / "cluster.yaml").write_text(found.cluster_file())
    cluster = Pools.load(tmp_path / "cluster.yaml")
    pools = cluster.pools
    assert [(pool.name, pool.partition, pool.price_per_hour) for pool in pools] == [
        ("slow", "slow", 0.04),
        ("fast", "fast", 0.4),
    ]
    assert [pool.rank_limit for pool in pools] == [1, 2]
    assert pools[0].memory_per_node_gb < 1.0
    # neither pool has two nodes whose link could be measured
    cards = {link.pools: link.bytes_per_second for link in cluster.links}
    assert cards == {("slow", "slow"): 25e6, ("fast", "fast"): 1.25e9}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("cores: 1.5", "cores: 1.9", "2.1 cores together, this host has 2; lower `cores`"),
        ("cores: 0.2", "cores: 0.05", "node s1: 0.05 cores are less than a quota can give"),
        ("cores: 0.2", "cores: much", "s1: cores is 'much'; it must be a positive number"),
        ("{s1: 200}", "{s9: 200}", "a link names node 's9'; there are s1, f1"),
        ("{s1: 200}", "{s1: -1}", "s1: link is -1"),
        (", fast: {price_per_hour: 0.4}", "", "partition 'fast' has no pool; add `fast:"),
        ("fast: {p", "gpu: {price_per_hour: 1}, fast: {p", "pool 'gpu' has no nodes"),
        ("memory_mb: 1000", "memory_mb: 100", "node s1: memory_mb is 100"),
        ("memory_mb: 1000", "memory_mb: 90000000", "node s1: memory_mb is 9e+07, this host has "),
        ("partition: slow", "partition: all", "node s1: Slurm has a partition 'all' already"),
        ("  f1:", "  s1:", "own.yaml: not valid YAML: key 's1' is there 2 times"),
        ("links:", "wires:", "unknown key 'wires'; keys are links, name, nodes, pools"),
        ("  f1:", "  Fast-1:", "node name 'Fast-1' must be one to eight small letters"),
        ("nodes:", "nodes: [", "own.yaml: not valid YAML: line "),
    ],
)
def test_bad_file_is_one_line(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert old in FILE
    with pytest.raises(ClusterError) as error:
        load(tmp_path, FILE.replace(old, new))
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_file_names_the_shipped_ones() -> None:
    with pytest.raises(ClusterError, match="shipped ones: slow-and-fast, thin-pipe, three-kinds, "):
        find_nodes_file("fast-and-slow")


def test_shipped_files_fit_two_cores() -> None:
    files = sorted(SHIPPED.glob("*.yaml"))
    assert len(files) == 4
    for file in files:
        assert load_nodes(file, 2).name == file.stem


def test_nodes_that_leave_the_host_nothing_are_told() -> None:
    shipped = {name: load_nodes(find_nodes_file(name), 2) for name in ("two-and-two", "thin-pipe")}
    assert crowding(shipped["two-and-two"], 2).startswith(
        "\nnote: the nodes have 2 of this host's 2"
    )
    assert crowding(shipped["two-and-two"], 3) == crowding(shipped["thin-pipe"], 2) == ""


def test_plain_and_unlike_nodes_in_slurm_conf() -> None:
    """One set of files serves both: alike on the loopback address, unlike on their own."""
    nodes = load_nodes(find_nodes_file("two-and-two"), 2).nodes
    plain, unlike = ClusterSpec(Path("/tmp/x"), 20000), ClusterSpec(Path("/tmp/x"), 20000, nodes)
    assert "NodeAddr=127.0.0.1 Port=20001 CPUs=4" in slurm_conf(plain)
    assert "NodeAddr=10.77.0.1 Port=20001 CPUs=1" in slurm_conf(unlike)
    assert "RealMemory=2500" in slurm_conf(unlike)
    assert "127.0.0.1 c1\n" in hosts(plain)
    assert "10.77.0.4 f2\n" in hosts(unlike)


def test_limits_in_both_versions_of_cgroups(tmp_path: Path) -> None:
    node = Node.limited("s1", "slow", 0.2, 1000, None)
    one, two = tmp_path / "one", tmp_path / "two"
    (one / "cpu").mkdir(parents=True)
    Cgroups("t", one).make("s1", node)
    assert (one / "cpu/t/s1/cpu.cfs_quota_us").read_text() == "2000"
    assert (one / "cpu/t/s1/cpu.cfs_period_us").read_text() == "10000"
    assert (one / "cpu/t/cpu.shares").read_text() == "262144"
    assert (one / "memory/t/s1/memory.limit_in_bytes").read_text() == str(1000 * 2**20)
    two.mkdir()
    (two / "cgroup.controllers").write_text("cpuset cpu memory")
    Cgroups("t", two).make("s1", node)
    assert (two / "t/s1/cpu.max").read_text() == "2000 10000"
    assert (two / "t/s1/memory.max").read_text() == str(1000 * 2**20)
    assert (two / "t/cgroup.subtree_control").read_text() == "+cpu +memory"


def test_one_line_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ClusterSpec(Path("/tmp/x"), nodes=load_nodes(find_nodes_file("two-and-two"), 2).nodes)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("slurm.dev_cluster.cluster.missing_programs", lambda *_: [])
    with pytest.raises(ClusterError) as error:
        DevCluster(spec).up()
    expected = "nodes that differ cannot be made here: not root; `cluster up` without --nodes works"
    assert str(error.value) == expected


@pytest.fixture(scope="module")
def unlike() -> Iterator[DevCluster]:
    """A running cluster of unlike nodes: one slow behind a thin link, one fast."""
    nodes = (
        Node.limited("s1", "slow", 0.2, 1000, 100.0),
        Node.limited("f1", "fast", 0.8, 1500, None),
    )
    spec = ClusterSpec(Path(f"/tmp/hs-unlike-{os.getpid()}"), free_ports(3), nodes)
    if missing := missing_programs(spec):
        pytest.skip(f"Slurm is not installed (no {', '.join(missing)})")
    if (reason := why_not_unlike(spec)) is not None:
        pytest.skip(f"nodes that differ cannot be made here: {reason}")
    with guarded(DevCluster(spec)) as cluster:
        yield cluster
    subprocess.run(["rm", "-rf", spec.folder], check=True)


def inside(cluster: DevCluster, node: str, *command: str) -> str:
    done = subprocess.run(
        cluster.inside(node, command), capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_quotas_are_exact(unlike: DevCluster) -> None:
    """A node gets the CPU seconds of its quota, however fast the host's cores are.

    Never more; and as much within a few tries, as other processes of a busy host take their share.
    """
    program = (
        "import time; began, used = time.monotonic(), time.process_time()\n"
        "while time.monotonic() < began + 1: pass\n"
        "print((time.process_time() - used) / (time.monotonic() - began))"
    )
    for name, cores in (("s1", 0.2), ("f1", 0.8)):
        most = 0.0
        for _ in range(6):
            most = max(most, float(inside(unlike, name, sys.executable, "-c", program)))
            if most > 0.9 * cores:
                break
        assert 0.7 * cores < most < 1.1 * cores, name


SERVER = """
import socket, time
s = socket.create_server(("", 9999)); c, _ = s.accept(); n = 0; began = time.monotonic()
while part := c.recv(1 << 16): n += len(part)
print(n * 8 / (time.monotonic() - began) / 1e6)
"""
CLIENT = """
import socket, sys, time
for _ in range(200):
    try: c = socket.create_connection((sys.argv[1], 9999)); break
    except OSError: time.sleep(0.05)
c.sendall(bytes(1 << 24))
"""


def rate_of_link(cluster: DevCluster, sender: str, receiver: str) -> float:
    """Mbit/s that arrive."""
    server = subprocess.Popen(
        cluster.inside(receiver, [sys.executable, "-c", SERVER]), stdout=subprocess.PIPE, text=True
    )
    inside(cluster, sender, sys.executable, "-c", CLIENT, cluster.spec.address(receiver))
    return float(server.communicate(timeout=30)[0])


def test_link_has_its_rate_both_ways(unlike: DevCluster) -> None:
    """Within a few tries: on a busy host, who counts may be late at the beginning or the end."""
    for sender, receiver in (("s1", "f1"), ("f1", "s1")):
        rates: list[float] = []
        while not rates or (rates[-1] != pytest.approx(100, rel=0.15) and len(rates) < 4):
            rates.append(rate_of_link(unlike, sender, receiver))
        assert rates[-1] == pytest.approx(100, rel=0.15), f"{sender} to {receiver}: {rates}"


def test_one_world_spans_unlike_nodes(unlike: DevCluster, tmp_path: Path) -> None:
    """A heterogeneous job whose ranks talk over the bridge; a killed node comes back.

    It has many network interfaces now: without relay_pmi MPICH could not start.
    """
    client = SlurmClient(unlike)
    log, script = tmp_path / "job.log", tmp_path / "job.sh"
    world = Path(__file__).with_name("world.py")
    parts = [f"--het-group={i} {sys.executable} -m mpi4py {world} {i}" for i in range(2)]
    script.write_text(
        f"#!/bin/bash\n#SBATCH -o {log} -t 5 -p slow -n 1\n#SBATCH hetjob\n#SBATCH -p fast -n 1\n"
        f"export MPIR_CVAR_NOLOCAL=1\nsrun --mpi=pmi2 {parts[0]} : {parts[1]}\n"
    )
    unlike.kill_node("s1")
    unlike.start_node("s1")
    client.wait_for("all nodes idle", client._all_idle)
    more = [
        f"ip link add x{i} type veth peer name y{i} && ip addr add 10.99.{i}.1/24 dev x{i} && "
        f"ip addr add 10.99.{i}.2/24 dev y{i} && ip link set x{i} up && ip link set y{i} up"
        for i in range(10)
    ]
    inside(unlike, "s1", "sh", "-c", " && ".join(more))
    job = client.submit(script)
    assert client.wait_until_ended(job) == ["COMPLETED", "COMPLETED"], log.read_text()
    found = re.findall(r"rank=(\d) of=2 component=\d node=(\w+) host=(\w+)", log.read_text())
    assert sorted(found) == [("0", "s1", "s1"), ("1", "f1", "f1")]


def left_behind(spec: ClusterSpec) -> list[str]:
    """Whatever of a cluster is on the host besides its folder."""
    groups, network = Cgroups.of(spec), Network(spec)
    folders = [str(tree / groups.name) for tree in groups.trees if (tree / groups.name).exists()]
    links = [name for name in network._interfaces() if name.startswith(network.bridge)]
    mounts = [
        line for line in Path("/proc/mounts").read_text().splitlines() if str(spec.folder) in line
    ]
    return [*folders, *links, *mounts]


def test_nothing_is_left_when_everything_is_killed(unlike: DevCluster) -> None:
    """All processes die at once, as in a crash: the guard clears up what they cannot."""
    spec = unlike.spec
    assert left_behind(spec)
    pids = unlike.groups.pids()
    assert len(pids) > 6
    signal_all(pids, signal.SIGKILL)  # some end with others
    give_up = time.monotonic() + 20
    while left_behind(spec) or any(map(running, pids)) or any(spec.folder.glob("run/*.pid")):
        assert time.monotonic() < give_up, left_behind(spec)
        time.sleep(0.1)


def test_refused_nodes_leave_nothing(tmp_path: Path) -> None:
    """The command line: one line, exit code 1, no daemon started."""
    file = tmp_path / "many.yaml"
    file.write_text(FILE.replace("cores: 1.5", "cores: 1000"))
    words = ["--dir", f"/tmp/hs-no-{os.getpid()}", "up", "--nodes", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "slurm.dev_cluster", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("cluster: many.yaml: the nodes have 1000.2 cores together")
    assert done.stderr.count("\n") == 1
    assert not Path(words[1]).exists()
