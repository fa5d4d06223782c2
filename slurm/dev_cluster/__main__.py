"""Command line of the development cluster; `slurm/dev_cluster/cluster` calls it."""

import argparse
import os
import sys
from pathlib import Path

from slurm.dev_cluster.cluster import DevCluster
from slurm.dev_cluster.guard import guard, start_guard
from slurm.dev_cluster.install import install
from slurm.dev_cluster.nodes_file import NodesFile, crowding, find_nodes_file, load_nodes
from slurm.dev_cluster.spec import DEFAULT_DIR, DEFAULT_PORT, ClusterError, ClusterSpec, can_isolate


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cluster", description="A real Slurm on this one host.")
    parser.add_argument(
        "--dir", type=Path, default=Path(os.environ.get("HETERPS_SLURM_DIR", DEFAULT_DIR))
    )
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="first of the ports that it uses"
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    inst = verbs.add_parser("install", help="Slurm by apt, as root")
    inst.add_argument("--if-possible", action="store_true", help="only warn when not root")
    up = verbs.add_parser("up", help="start, and wait until all nodes are idle")
    up.add_argument("--with-pid", type=int, help="go down by itself when this process ends")
    up.add_argument("--nodes", metavar="FILE", help="nodes that differ: a file, or a shipped one")
    pools = verbs.add_parser("pools", help="the cluster file of a file of nodes, for heterps")
    pools.add_argument("--nodes", metavar="FILE", required=True)
    inside = verbs.add_parser("exec", help="run a command in a node that differs")
    inside.add_argument("node")
    inside.add_argument("command", nargs=argparse.REMAINDER)
    verbs.add_parser("down", help="end all daemons and jobs")
    verbs.add_parser("status", help="the nodes and their states")
    verbs.add_parser("env", help="shell line that makes sbatch and others use this cluster")
    verbs.add_parser("kill-node", help="a node dies, with all that it runs").add_argument("node")
    verbs.add_parser("start-node", help="a dead node comes back").add_argument("node")
    verbs.add_parser("guard", help="(internal) wait for a process, then go down").add_argument(
        "--pid", type=int
    )
    return parser.parse_args()


def up(spec: ClusterSpec, name: str | None, with_pid: int | None) -> str:
    """Start the plain cluster, or one of unlike nodes; returns what to print."""
    nodes: NodesFile | None = None
    if name is not None:
        nodes = load_nodes(find_nodes_file(name))
        spec = ClusterSpec(spec.folder, spec.port, nodes.nodes, can_isolate())
    before = DevCluster(ClusterSpec.of_folder(spec.folder, spec.port))
    if not before.is_up():
        before.down()  # what a crash left, also on another port
    cluster = DevCluster(spec)
    cluster.up()
    if with_pid or spec.unlike:  # cgroups and links do not go by themselves when daemons die
        start_guard(cluster, with_pid)
    text = f'up; for sbatch, squeue and the rest: export SLURM_CONF="{spec.conf}"'
    if nodes is not None:
        (spec.folder / "cluster.yaml").write_text(nodes.cluster_file())
        text += f"\ncluster file for heterps: {spec.folder}/cluster.yaml"
        text += crowding(nodes, len(os.sched_getaffinity(0)))
    return text


def run(arguments: argparse.Namespace) -> str:
    """Do one verb; returns what to print."""
    folder = arguments.dir.absolute()
    plain = ClusterSpec(folder, arguments.port, isolate=can_isolate())
    spec = ClusterSpec.of_folder(folder, arguments.port)
    cluster = DevCluster(spec)
    text = ""
    match arguments.verb:
        case "install":
            text = install(spec, arguments.if_possible)
        case "up":
            text = up(plain, arguments.nodes, arguments.with_pid)
        case "pools":
            text = load_nodes(find_nodes_file(arguments.nodes)).cluster_file()
        case "exec":
            command = cluster.inside(arguments.node, arguments.command)
            os.execvpe(command[0], command, spec.environment())
        case "down":
            cluster.down()
        case "status":
            text = cluster.status()
        case "env":
            text = f"export SLURM_CONF='{spec.conf}'"
        case "kill-node":
            cluster.kill_node(arguments.node)
        case "start-node":
            cluster.start_node(arguments.node)
        case "guard":
            guard(cluster, arguments.pid)
    return text


def main() -> int:
    try:
        text = run(parse())
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    if text:
        print(text.rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
