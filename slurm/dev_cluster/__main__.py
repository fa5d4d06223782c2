"""Command line of the development cluster; `slurm/dev_cluster/cluster` calls it."""

import argparse
import os
import sys
from pathlib import Path

from slurm.dev_cluster.cluster import Cluster
from slurm.dev_cluster.guard import guard, start_guard
from slurm.dev_cluster.install import install
from slurm.dev_cluster.spec import (
    DEFAULT_DIR,
    DEFAULT_PORT,
    ClusterError,
    ClusterSpec,
    can_isolate,
)


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
    verbs.add_parser("down", help="end all daemons and jobs")
    verbs.add_parser("status", help="the nodes and their states")
    verbs.add_parser("env", help="shell line that makes sbatch and others use this cluster")
    verbs.add_parser("kill-node", help="a node dies, with all that it runs").add_argument("node")
    verbs.add_parser("start-node", help="a dead node comes back").add_argument("node")
    verbs.add_parser("guard", help="(internal) wait for a process, then go down").add_argument(
        "--pid", type=int, required=True
    )
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> str:
    """Do one verb; returns what to print."""
    spec = ClusterSpec(arguments.dir.absolute(), arguments.port, isolate=can_isolate())
    cluster = Cluster(spec)
    text = ""
    match arguments.verb:
        case "install":
            text = install(spec, arguments.if_possible)
        case "up":
            cluster.up()
            if arguments.with_pid:
                start_guard(cluster, arguments.with_pid)
            text = f'up; for sbatch, squeue and the rest: export SLURM_CONF="{spec.conf}"'
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
