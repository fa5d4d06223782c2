"""Cluster: pools of nodes of one kind and price, and the links between them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from heterps_hpc.errors import UserError
from heterps_hpc.validation import Value, nearest

Positive = Annotated[int, Field(gt=0, le=100_000)]  # ranks, nodes
# a rank has as many threads: with ten thousands of them no process could start any more
Cores = Annotated[int, Field(gt=0, le=4096)]
# prices, times and sizes: the planner multiplies and divides by them
PositiveFloat = Annotated[float, Field(ge=1e-12, le=1e15)]


class SlurmOptions(Value):
    """What a site wants in each component of a job, beyond what the layout decides."""

    account: str | None = None  # account that pays
    qos: str | None = None  # quality of service
    constraint: str | None = None  # features that nodes must have
    gres: str | None = None  # GPUs by --gres, where a site asks for that
    reservation: str | None = None  # reservation of nodes to run in
    options: tuple[str, ...] = ()  # further #SBATCH options, one each, e.g. "--exclusive"


def _device_kind(name: str) -> str:
    if name == "gpu" or not (name.isidentifier() and name.islower()):
        raise ValueError(
            f"{name!r} is not a device: write `cpu`, or an accelerator as torch calls it, such as "
            "`cuda` (AMD's too) or `xpu`"
        )
    return name


# the host, or any accelerator that torch knows; whether a node has it, its ranks find out
DeviceKind = Annotated[str, AfterValidator(_device_kind)]


class Pool(Value):
    """Nodes of one kind and price: one Slurm partition, or (a part of) this machine."""

    name: str  # used in plans, links and `--set`
    device: DeviceKind = "cpu"  # `cpu`, or an accelerator as torch calls it: `cuda`, `xpu`
    # which pool cpu-only and gpu-only mean; else by `device`
    kind: Literal["cpu", "accelerator"] | None = None
    partition: str | None = None  # partition of Slurm; not needed on this machine
    price_per_hour: PositiveFloat  # $ of a rank or of a node, by `billing`
    billing: Literal["rank", "node"] = "rank"  # what one price is for, as your site charges
    max_ranks: Positive | None = None  # the most ranks that a plan may use
    max_nodes: Positive | None = None  # the most nodes that a plan may use
    cores_per_node: Cores = 1  # cores of a node that ranks may use
    cores_per_rank: Cores = 1  # cores, and so threads, of a rank
    memory_per_node_gb: PositiveFloat = 4.0  # memory of a node, GB (1e9 bytes); its ranks share it
    # accelerators of a node; each rank gets one
    gpus_per_node: Annotated[int, Field(ge=0, le=1000)] = 0
    gpu_memory_gb: PositiveFloat | None = None  # memory of one accelerator, GB (1e9 bytes)
    data_sheet: str | None = None  # a shipped data sheet: the pool is then estimated, not measured
    slurm: SlurmOptions = SlurmOptions()

    @field_validator("name")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not value or not value.isprintable():
            raise ValueError(f"pool name {value!r} must be printable and not empty")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_ranks is None and self.max_nodes is None:
            raise ValueError(f"pool {self.name!r} needs `max_ranks` or `max_nodes`")
        if self.cores_per_rank > self.cores_per_node:
            raise ValueError(
                f"pool {self.name!r}: cores_per_rank {self.cores_per_rank} exceeds "
                f"cores_per_node {self.cores_per_node}; no rank would fit on a node"
            )
        if self.device != "cpu" and self.gpus_per_node < 1:
            raise ValueError(f"pool {self.name!r} has device {self.device} but gpus_per_node is 0")
        return self

    @property
    def is_accelerator(self) -> bool:
        """Whether baselines count the pool among the accelerators."""
        return self.device != "cpu" if self.kind is None else self.kind == "accelerator"

    @property
    def ranks_per_node(self) -> int:
        """How many ranks share a node: one each on accelerators, else by cores."""
        by_cores = self.cores_per_node // self.cores_per_rank
        return min(by_cores, self.gpus_per_node) if self.device != "cpu" else by_cores

    @property
    def rank_limit(self) -> int:
        """The most ranks that the pool can give."""
        by_nodes = None if self.max_nodes is None else self.max_nodes * self.ranks_per_node
        limits = [limit for limit in (self.max_ranks, by_nodes) if limit is not None]
        return min(limits)

    @property
    def memory_per_rank_bytes(self) -> int:
        """Memory that one rank may fill when its node is full of ranks."""
        return int(self.memory_per_node_gb * 1e9 / self.ranks_per_node)

    def num_nodes(self, num_ranks: int) -> int:
        """Nodes that hold that many ranks."""
        return -(-num_ranks // self.ranks_per_node)

    def hourly_price(self, num_ranks: int) -> float:
        """$/hour of that many ranks, by rank or by whole nodes as the site bills."""
        units = self.num_nodes(num_ranks) if self.billing == "node" else num_ranks
        return self.price_per_hour * units


class Link(Value):
    """The way between two pools (or within one)."""

    pools: tuple[str, str]  # the two ends; the same pool twice: within it
    latency_seconds: PositiveFloat  # time of a small message
    bytes_per_second: PositiveFloat  # bandwidth between two ranks
    estimated: bool = True  # not measured: plans that use it are marked


class Site(Value):
    """What a site needs around the job: modules, set-up lines, the MPI plugin of srun."""

    modules: tuple[str, ...] = ()  # loaded by the batch script, in this order
    setup: tuple[str, ...] = ()  # lines of shell for the batch script
    environment: dict[str, str] = Field(default_factory=dict)  # variables of the ranks
    srun_mpi: str | None = None  # plugin of srun; else chosen for the MPI at hand
    srun_options: tuple[str, ...] = ()  # further options of srun, one each
    prefix: tuple[str, ...] = ()  # before every rank's command, e.g. a container's `exec`
    python: str | None = None  # the interpreter of the ranks, where it is not the one that submits
    time_limit_minutes: PositiveFloat | None = None  # the longest job that the site allows


class Cluster(Value):
    """All pools and the links between them."""

    version: Literal[1] = 1  # version of the file format
    name: str = "cluster"  # name in reports
    pools: tuple[Pool, ...]
    links: tuple[Link, ...] = ()
    site: Site = Site()

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        names = [pool.name for pool in self.pools]
        if not names:
            raise ValueError("a cluster needs at least one pool")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two pools are named {twice[0]!r}; names must differ")
        for link in self.links:
            for name in link.pools:
                if name not in names:
                    raise ValueError(f"a link names pool {name!r}; {nearest(name, names)}")
        return self

    @classmethod
    def this_machine(cls) -> Self:
        """One pool of this machine's cores, for a job without a cluster file.

        Nothing is known of prices, so money counts core-hours: 1 per core and hour.
        """
        cores = len(os.sched_getaffinity(0))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
        pool = Pool(
            name="local",
            price_per_hour=1.0,
            max_nodes=1,
            cores_per_node=cores,
            memory_per_node_gb=round(memory, 1),
        )
        return cls(name="this machine", pools=(pool,))

    def pool(self, name: str) -> Pool:
        """The pool of that name."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise UserError(
            f"no pool {name!r} in cluster {self.name!r}; "
            f"{nearest(name, [pool.name for pool in self.pools])}"
        )

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a cluster file."""
        return super().load(path)
