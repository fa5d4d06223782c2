"""How a node starts: in which name spaces, and what its first process does there; pure text."""

import shlex

from slurm.dev_cluster.network import INSIDE, shape_command
from slurm.dev_cluster.spec import ClusterSpec, Node

SHARED = ("--uts", "--mount", "--ipc", "--propagation", "private")
OWN = ("--net", "--pid", "--fork", "--kill-child", "--mount-proc")


def node_command(spec: ClusterSpec, node: Node) -> list[str]:
    """What starts a node; its tasks inherit the name spaces that it is given here."""
    if node.limits is not None:
        return ["unshare", *SHARED, *OWN, "bash", "-c", first_process(spec, node)]
    if spec.isolate:
        return [
            "unshare",
            *SHARED,
            "sh",
            "-c",
            f"{own_host(spec, node)} && exec {_slurmd(spec, node)}",
        ]
    return shlex.split(_slurmd(spec, node))


def own_host(spec: ClusterSpec, node: Node) -> str:
    """A host name, /etc/hosts and /dev/shm of its own."""
    return (
        f"hostname {node.name} && mount --bind {spec.hosts} /etc/hosts && "
        f"mount -t tmpfs -o mode=1777 shm-{node.name} /dev/shm"
    )


def first_process(spec: ClusterSpec, node: Node) -> str:
    """The script that becomes process 1 of an unlike node, and reaps what its tasks leave."""
    assert node.limits is not None
    mbit = node.limits.link_mbit
    shape = shlex.join(shape_command(INSIDE, mbit)) if mbit is not None else "true"
    hold, boot_id = spec.folder / "etc/hold", spec.folder / "etc" / f"boot_id.{node.name}"
    return f"""
{own_host(spec, node)} || exit 1
# sysfs shows the interfaces of the network name space that it was mounted in
mount --rbind /sys/fs/cgroup {hold} && mount -t sysfs none /sys || exit 1
mount --move {hold} /sys/fs/cgroup || exit 1
# UCX takes processes of one boot for neighbours, and goes around the network
mount --bind {boot_id} /proc/sys/kernel/random/boot_id || exit 1
ip link set lo up || exit 1
for (( i = 0; i < 500; i++ )); do ip link show {INSIDE} > /dev/null 2>&1 && break; sleep 0.02; done
ip addr add {spec.address(node.name)}/24 dev {INSIDE} && ip link set {INSIDE} up || exit 1
{shape} || exit 1
{_slurmd(spec, node)} -D &
while :; do wait -n; [[ $? == 127 ]] && sleep 1; done
"""


def _slurmd(spec: ClusterSpec, node: Node) -> str:
    return f"slurmd -N {node.name} -f {spec.conf}"
