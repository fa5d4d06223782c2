"""The network of unlike nodes: a bridge, and a link of a given rate to every node."""

import json
import shutil
import subprocess
from dataclasses import dataclass

from slurm.dev_cluster.spec import ClusterError, ClusterSpec, Node

INSIDE = "eth0"  # a node's end of its link


def shape_command(interface: str, mbit: float) -> list[str]:
    """What leaves by an interface goes at that rate; the burst is what one timer tick needs."""
    rate = ["rate", f"{mbit:g}mbit", "burst", "128kb", "latency", "50ms"]
    return ["tc", "qdisc", "replace", "dev", interface, "root", "tbf", *rate]


@dataclass(frozen=True)
class Network:
    """Interfaces on the host; those of a node go with its last process."""

    spec: ClusterSpec

    @property
    def bridge(self) -> str:
        return f"h{self.spec.port}"

    def outside(self, node: str) -> str:
        """The host's end of a node's link."""
        return f"{self.bridge}-{node}"

    def make_bridge(self) -> None:
        subnet = f"{self.spec.subnet}.0/24"
        if any(route.get("dst") == subnet for route in self._list("route", "show")):
            raise ClusterError(f"{subnet} is in use on this host; choose another --port")
        self._ip("link", "add", self.bridge, "type", "bridge")
        self._ip("addr", "add", f"{self.spec.controller_address}/24", "dev", self.bridge)
        self._ip("link", "set", self.bridge, "up")

    def connect(self, node: Node, pid: int) -> None:
        """A link between the bridge and the network name space of a process."""
        outside = self.outside(node.name)
        peer = ["peer", "name", INSIDE, "netns", str(pid)]
        self._ip("link", "add", outside, "type", "veth", *peer)
        self._ip("link", "set", outside, "master", self.bridge, "up")
        if node.limits is not None and node.limits.link_mbit is not None:
            self._run(shape_command(outside, node.limits.link_mbit))

    def disconnect(self, node: str) -> None:
        """Take the link away, if the kernel has not: it goes with the node's last process."""
        if self.outside(node) in self._interfaces():
            self._ip("link", "del", self.outside(node), missing_is_fine=True)

    def remove(self) -> None:
        """Everything of this cluster that is there."""
        if shutil.which("ip", path=self.spec.environment()["PATH"]) is None:
            return
        try:
            interfaces = self._interfaces()
        except ClusterError:  # a container without a network of its own: nothing was made in it
            return
        for interface in interfaces:
            if interface == self.bridge or interface.startswith(f"{self.bridge}-"):
                self._ip("link", "del", interface, missing_is_fine=True)

    def _interfaces(self) -> list[str]:
        return [str(link["ifname"]) for link in self._list("link", "show")]

    def _list(self, *words: str) -> list[dict[str, str]]:
        text = self._run(["ip", "-json", *words])
        found: list[dict[str, str]] = json.loads(text or "[]")
        return found

    def _ip(self, *words: str, missing_is_fine: bool = False) -> None:
        self._run(["ip", *words], missing_is_fine)

    def _run(self, command: list[str], missing_is_fine: bool = False) -> str:
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.spec.environment(), timeout=20
        )
        if done.returncode != 0 and not (missing_is_fine and "Cannot find" in done.stderr):
            raise ClusterError(f"{' '.join(command)}: {' '.join(done.stderr.split())}")
        return done.stdout
