"""Problem: one planning question as plain arrays, checked once, shared by every scheduler."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.cluster import Cluster, Link
from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.plan.pipeline import Pipeline
from heterps_hpc.profile import Profile
from heterps_hpc.table_size import snapshot_share

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# A link that nobody measured or described: 10 Gbit/s Ethernet.
UNKNOWN_LINK_LATENCY_SECONDS = 30e-6
UNKNOWN_LINK_BYTES_PER_SECOND = 1.25e9
SAME_LINK = 1.1  # times as long per byte: as far apart two measurements of one link may be
OPTIMIZER_COPIES = 4  # a dense parameter with its gradient and two moments


@dataclass(frozen=True, eq=False)
class PoolArrays:
    """One entry per pool."""

    names: tuple[str, ...]
    price: Floats  # $/hour of one billed unit
    ranks_per_unit: Ints  # ranks in a billed unit: 1, or those of a node
    limit: Ints  # ranks
    memory: Floats  # bytes of one rank
    device_memory: Floats  # bytes of one rank's device; infinite on CPU pools and where unknown
    is_cpu: Bools
    fixed_seconds: Floats  # per batch and rank
    overlap: Floats
    full_node_ranks: Ints  # times are those of a node with so many busy ranks
    alone: Floats  # a rank alone on its node needs this share of them
    uplink_latency: Floats  # to the other pools
    uplink_seconds_per_byte: Floats
    inner_seconds_per_byte: Floats  # within the pool
    reduce_latency: Floats
    reduce_seconds_per_byte: Floats
    message_seconds_per_byte: Floats  # of processor time, sent or received
    message_seconds: Floats  # of processor time, of a message whatever its bytes
    cut_seconds_per_byte: Floats  # as message_seconds_per_byte, between two stages
    cut_message_seconds: Floats  # as message_seconds, between two stages
    tables_fixed_seconds: Floats  # as fixed_seconds, of a rank of tables alone
    estimated: Bools
    kinds: tuple[str, ...] = ()  # `cpu` or `accelerator`, as the cluster file says; else by device
    # by the keys of the cluster file, for messages; absent where a question was not made from one
    ranks_per_node: Ints | None = None
    max_ranks: tuple[int | None, ...] = ()
    max_nodes: tuple[int | None, ...] = ()

    @property
    def is_accelerator(self) -> Bools:
        """Pools of accelerators, as baselines count them."""
        if not self.kinds:
            return ~self.is_cpu
        return np.array([kind == "accelerator" for kind in self.kinds])


@dataclass(frozen=True, eq=False)
class LayerArrays:
    """One entry per layer; times are per (layer, pool) and per batch of the job."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    is_embedding: Bools
    OCT: Floats
    alpha: Floats
    ODT: Floats
    beta: Floats
    weight_bytes: Floats
    table_bytes: Floats
    activation_bytes: Floats  # per batch
    input_bytes: Floats  # per sample
    tensors: tuple[tuple[int, tuple[int, ...], float], ...]  # writer, readers, bytes per batch


@dataclass(frozen=True, eq=False)
class Problem:
    """Minimise money for `num_batches` batches, no slower than the floor, within the limits."""

    pools: PoolArrays
    layers: LayerArrays
    batch_size: int
    micro_batches: int
    staleness: int
    num_batches: float
    floor: float  # samples per second; 0 = none
    hot_bytes: float = math.inf  # what a rank keeps of its tables in memory
    snapshot_share: float = 0.0  # of that, what a save alongside training may copy

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layers.names)

    @property
    def num_pools(self) -> int:
        """P."""
        return len(self.pools.names)

    @property
    def pipeline(self) -> Pipeline:
        """How the batches of a plan overlap."""
        return Pipeline(self.micro_batches, self.staleness)

    @property
    def longest_batch(self) -> float:
        """Seconds that a batch may take under the floor."""
        return self.batch_size / self.floor if self.floor > 0 else math.inf

    def with_floor(self, samples_per_second: float) -> Problem:
        """The same question with another floor."""
        return replace(self, floor=samples_per_second)

    def with_limits(self, limit: Ints) -> Problem:
        """The same question with other pool limits."""
        return replace(self, pools=replace(self.pools, limit=limit))

    def without_snapshots(self) -> Problem:
        """The same question if nothing is saved alongside training."""
        return replace(self, snapshot_share=0.0)

    def without_pool(self, pool: int) -> Problem:
        """The same question with one pool closed."""
        memory, device = self.pools.memory.copy(), self.pools.device_memory.copy()
        memory[pool] = device[pool] = -1.0
        return replace(self, pools=replace(self.pools, memory=memory, device_memory=device))

    def with_memory(self, memory: Floats) -> Problem:
        """The same question with other memory per rank."""
        return replace(self, pools=replace(self.pools, memory=memory))

    def with_device_memory(self, device_memory: Floats) -> Problem:
        """The same question with other memory per device."""
        return replace(self, pools=replace(self.pools, device_memory=device_memory))


def make_problem(
    profile: Profile,
    cluster: Cluster,
    *,
    batch_size: int,
    num_samples: float,
    micro_batches: int = 1,
    staleness: int = 1,
    floor: float = 0.0,
    hot_bytes: float | None = None,
    snapshot_share: float = 0.0,
) -> Problem:
    """Gather what the profile and the cluster say; `num_samples` counts all epochs."""
    if not math.isfinite(num_samples) or num_samples <= 0:
        raise UserError(f"the job trains {num_samples} samples; it needs at least one")
    if not math.isfinite(floor) or floor < 0:
        raise UserError(f"the throughput floor is {floor} samples/s; it must be positive")
    return Problem(
        pools=_pool_arrays(profile, cluster, micro_batches),
        layers=_layer_arrays(profile, cluster, batch_size, num_samples / batch_size),
        batch_size=batch_size,
        micro_batches=micro_batches,
        staleness=staleness,
        num_batches=num_samples / batch_size,
        floor=floor,
        hot_bytes=math.inf if hot_bytes is None else float(hot_bytes),
        snapshot_share=snapshot_share,
    )


def problem_of_job(profile: Profile, cluster: Cluster, job: Job, num_samples: float) -> Problem:
    """The question that a job asks; `num_samples` is what it trains in all, over all epochs.

    A floor given as a fraction of the best is left open: it needs the best first.
    """
    train = job.train
    return make_problem(
        profile,
        cluster,
        batch_size=train.batch_size,
        num_samples=num_samples,
        micro_batches=train.micro_batches,
        staleness=train.staleness,
        floor=job.goal.min_samples_per_second or 0.0,
        hot_bytes=train.tables.hot_bytes,
        snapshot_share=snapshot_share(job),
    )


def _layer_arrays(
    profile: Profile, cluster: Cluster, batch_size: int, num_batches: float
) -> LayerArrays:
    names = tuple(layer.name for layer in profile.layers)
    order = {name: index for index, name in enumerate(names)}
    grid = [[profile.timing(layer, pool.name) for pool in cluster.pools] for layer in names]
    scale = batch_size / profile.batch_size
    oct_ = np.array([[t.compute_seconds for t in row] for row in grid]) * scale
    # every row is created once in the job: in the mean of its batches so many
    new_rows = np.array(
        [
            min(layer.table_rows_total / num_batches, layer.keys_per_sample * batch_size)
            for layer in profile.layers
        ]
    )
    # the first window of keys is loaded before the first batch
    loaded = max(0.0, 1 - profile.window_rows / (num_batches * batch_size)) * batch_size
    read_keys = np.array([layer.keys_per_sample * loaded for layer in profile.layers])
    fixed = [profile.pool(pool.name) for pool in cluster.pools]
    oct_ = oct_ + new_rows[:, None] * np.array([pool.new_row_seconds for pool in fixed])
    oct_ = oct_ + read_keys[:, None] * np.array([pool.read_key_seconds for pool in fixed])
    for index, name in enumerate(names):
        if not (oct_[index] > 0).all() and profile.layers[index].kind != "loss":
            pool = cluster.pools[int(np.argmin(oct_[index]))].name
            raise UserError(
                f"the profile says layer {name!r} takes 0 s on pool {pool!r}; measure it again"
            )
    return LayerArrays(
        names=names,
        kinds=tuple(layer.kind for layer in profile.layers),
        is_embedding=np.array([layer.is_embedding for layer in profile.layers]),
        OCT=oct_,
        alpha=np.array([[t.compute_parallel for t in row] for row in grid]),
        ODT=np.array([[t.move_seconds for t in row] for row in grid]) * scale,
        beta=np.array([[t.move_parallel for t in row] for row in grid]),
        weight_bytes=np.array([layer.weight_bytes_total for layer in profile.layers]),
        table_bytes=np.array([layer.table_bytes_total for layer in profile.layers]),
        activation_bytes=np.array([x.activation_bytes for x in profile.layers]) * batch_size,
        input_bytes=np.array([layer.input_bytes for layer in profile.layers]),
        tensors=tuple(
            (
                order[tensor.writer],
                tuple(order[reader] for reader in tensor.readers),
                tensor.bytes_per_sample * batch_size,
            )
            for tensor in profile.tensors
        ),
    )


def _pool_arrays(profile: Profile, cluster: Cluster, micro_batches: int) -> PoolArrays:
    pools = cluster.pools
    timings = [profile.pool(pool.name) for pool in pools]
    estimated = set(profile.estimated_pools)
    uplinks = [_uplink(pool.name, profile, cluster) for pool in pools]
    inner = [_own_link(pool.name, profile, cluster) for pool in pools]
    fixed_seconds = [t.batch_seconds + micro_batches * t.micro_batch_seconds for t in timings]
    of_a_byte = [t.message_seconds_per_byte for t in timings]
    of_a_message = [t.message_seconds for t in timings]
    cut_bytes = [t.cut_seconds_per_byte for t in timings]
    return PoolArrays(
        names=tuple(pool.name for pool in pools),
        price=_floats(pool.price_per_hour for pool in pools),
        ranks_per_unit=np.array([p.ranks_per_node if p.billing == "node" else 1 for p in pools]),
        limit=np.array([pool.rank_limit for pool in pools]),
        memory=_floats(pool.memory_per_rank_bytes for pool in pools),
        device_memory=_floats(
            math.inf if p.gpu_memory_gb is None else p.gpu_memory_gb * 1e9 for p in pools
        ),
        is_cpu=np.array([pool.device == "cpu" for pool in pools]),
        fixed_seconds=_floats(fixed_seconds),
        overlap=_floats(t.overlap for t in timings),
        full_node_ranks=np.array([t.full_node_ranks for t in timings]),
        alone=_floats(t.alone for t in timings),
        uplink_latency=_floats(latency for latency, _ in uplinks),
        uplink_seconds_per_byte=_floats(seconds for _, seconds in uplinks),
        inner_seconds_per_byte=_floats(seconds for _, seconds in inner),
        reduce_latency=_measured_or(
            (t.reduce_latency_seconds for t in timings), (latency for latency, _ in inner)
        ),
        reduce_seconds_per_byte=_measured_or(
            (t.reduce_seconds_per_byte for t in timings), (seconds for _, seconds in inner)
        ),
        message_seconds_per_byte=_floats(of_a_byte),
        message_seconds=_floats(of_a_message),
        cut_seconds_per_byte=_measured_or(cut_bytes, of_a_byte),
        cut_message_seconds=_measured_or(  # where a cut was measured, it is in that of a byte
            (None if seconds is None else 0.0 for seconds in cut_bytes), of_a_message
        ),
        tables_fixed_seconds=_measured_or((t.tables_batch_seconds for t in timings), fixed_seconds),
        estimated=np.array([pool.name in estimated for pool in pools]),
        kinds=tuple("accelerator" if pool.is_accelerator else "cpu" for pool in pools),
        ranks_per_node=np.array([pool.ranks_per_node for pool in pools]),
        max_ranks=tuple(pool.max_ranks for pool in pools),
        max_nodes=tuple(pool.max_nodes for pool in pools),
    )


def _floats(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)


def _measured_or(measured: Iterable[float | None], otherwise: Iterable[float]) -> Floats:
    pairs = zip(measured, otherwise, strict=True)
    return _floats(other if own is None else own for own, other in pairs)


def _known_link(
    left: str, right: str, profile: Profile, cluster: Cluster
) -> tuple[float, float] | None:
    """Latency and seconds per byte; what was measured goes before what the cluster file says."""
    for link in (*profile.links, *cluster.links):
        if _ends(link) == frozenset((left, right)):
            return link.latency_seconds, 1.0 / link.bytes_per_second
    return None


def _link(left: str, right: str, profile: Profile, cluster: Cluster) -> tuple[float, float]:
    unknown = UNKNOWN_LINK_LATENCY_SECONDS, 1.0 / UNKNOWN_LINK_BYTES_PER_SECOND
    return _known_link(left, right, profile, cluster) or unknown


def _own_link(name: str, profile: Profile, cluster: Cluster) -> tuple[float, float]:
    """The link of a pool with itself: what a rank gets of its node's network card.

    A cluster file says what a card is sold as, of which protocols take their part. So where a
    measured link to another pool is the same but for that, it is the card as it is.
    """
    latency, described = _link(name, name, profile, cluster)
    measured = {_ends(link): 1.0 / link.bytes_per_second for link in profile.links}
    if frozenset((name,)) in measured or _known_link(name, name, profile, cluster) is None:
        return latency, described
    same = [
        seconds
        for ends, seconds in measured.items()
        if name in ends and described <= seconds <= SAME_LINK * described
    ]
    return latency, min(same, default=described)


def _uplink(name: str, profile: Profile, cluster: Cluster) -> tuple[float, float]:
    """A rank's way out, taken as the fastest of its links to other pools, so that a stage's time
    does not depend on where its neighbours are, which the exact solver needs. A slower neighbour
    is charged for its own slower way out.

    The pool's own link is what a rank gets of its node's network card. A link to another pool that
    is no slower than that pool's own says nothing of this one: several ranks of the other pool may
    use this one's card at once.
    """
    known = _known_link(name, name, profile, cluster)
    own = _own_link(name, profile, cluster)
    links = []
    for other in (pool.name for pool in cluster.pools if pool.name != name):
        latency, seconds = _link(name, other, profile, cluster)
        theirs = _known_link(other, other, profile, cluster)
        if known is not None and theirs is not None and seconds <= SAME_LINK * theirs[1]:
            seconds = own[1]
        links.append((latency, seconds))
    latency, seconds = (min(values) for values in zip(*(links or [own]), strict=True))
    return max(own[0], latency), max(own[1], seconds)


def _ends(link: Link) -> frozenset[str]:
    return frozenset(link.pools)
