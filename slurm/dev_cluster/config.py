"""The cluster's files: slurm.conf, gres.conf, host names, key and folders."""

import secrets
import shutil
from pathlib import Path
from string import Template

from slurm.dev_cluster.spec import ClusterSpec, Node


def slurm_conf(spec: ClusterSpec) -> str:
    """Text of slurm.conf; pure."""
    template = Template(Path(__file__).with_name("slurm.conf.in").read_text())
    names = dict.fromkeys(node.partition for node in spec.nodes)
    members = {name: [n.name for n in spec.nodes if n.partition == name] for name in names}
    first = next(iter(names))
    partitions = [
        f"PartitionName={name} Nodes={','.join(members[name])} "
        f"Default={'YES' if name == first else 'NO'} DefaultTime=10 MaxTime=60 State=UP"
        for name in names
    ]
    if spec.unlike:  # for jobs that do not distinguish the nodes
        partitions.append("PartitionName=all Nodes=ALL DefaultTime=10 MaxTime=60 State=UP")
    return template.substitute(
        host=spec.host,
        port=spec.port,
        user=spec.user,
        controller_address=spec.controller_address,
        # an unlike node has an interface of its own, and process numbers that mean nothing here
        binding="NoCtldInAddrAny" if spec.unlike else "NoInAddrAny,NoCtldInAddrAny",
        slurmd_pid_file="spool/%n/slurmd.pid" if spec.unlike else "run/slurmd.%n.pid",
        patience_seconds=30 if spec.unlike else 10,  # a slow node answers slowly
        folder=spec.folder,
        munge_socket=spec.munge_socket,
        nodes="\n".join(_node_line(spec, i, node) for i, node in enumerate(spec.nodes, 1)),
        partitions="\n".join(partitions),
    )


def gres_conf(spec: ClusterSpec) -> str:
    """Text of gres.conf: GPUs must name device files, or a node counts as lacking them."""
    lines = ["AutoDetect=off"]
    for node in spec.nodes:
        if node.num_gpus:
            files = f"{spec.folder}/dev/{node.name}-gpu[0-{node.num_gpus - 1}]"
            lines.append(f"NodeName={node.name} Name=gpu Type=fake File={files}")
    return "\n".join(lines) + "\n"


def hosts(spec: ClusterSpec) -> str:
    """Text of every node's /etc/hosts."""
    lines = ["127.0.0.1 localhost", "::1 localhost", f"{spec.controller_address} {spec.host}"]
    lines += [f"{spec.address(node.name)} {node.name}" for node in spec.nodes]
    return "\n".join(lines) + "\n"


def _node_line(spec: ClusterSpec, index: int, node: Node) -> str:
    host = node.name if spec.isolate or spec.unlike else spec.host
    gres = f" Gres=gpu:fake:{node.num_gpus}" if node.num_gpus else ""
    return (
        f"NodeName={node.name} NodeHostname={host} NodeAddr={spec.address(node.name)} "
        f"Port={spec.port + index} "
        f"CPUs={node.num_cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={node.num_cpus} "
        f"ThreadsPerCore=1 RealMemory={node.memory_mb}{gres} State=UNKNOWN"
    )


def write_config(spec: ClusterSpec) -> None:
    """Lay out a fresh folder; what an earlier cluster left there is thrown away."""
    folder = spec.folder
    for name in ("state", "spool", "tmp", "run", "log", "dev", "etc", "munge"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    for node in spec.nodes:
        (folder / "spool" / node.name).mkdir()
        (folder / "tmp" / node.name).mkdir()
        (folder / "tmp" / node.name).chmod(0o1777)
        for gpu in range(node.num_gpus):
            (folder / "dev" / f"{node.name}-gpu{gpu}").symlink_to("/dev/null")
    key = folder / "munge/key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    (folder / "etc/hold").mkdir()  # where a node keeps its cgroups while it mounts a /sys
    spec.hosts.write_text(hosts(spec))
    spec.save()
    (folder / "etc/gres.conf").write_text(gres_conf(spec))
    spec.conf.write_text(slurm_conf(spec))
