"""Times every layer of a model on one pool, with the code that trains.

    mpirun -n N python -m mpi4py -m heterps_hpc.runtime.measure.program RUN_DIR

RUN_DIR holds a job and a layout of one stage with k ranks. If more ranks than k are started, they
form further groups that do the same at the same time, so that figures are those of a busy node:
memory bandwidth and clock rates are shared there. Rank 0 writes measured.json.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.phases import Phase
from heterps_hpc.profile import TableLoad
from heterps_hpc.profiling.measurement import LinkTime, Measured
from heterps_hpc.runtime.health.ping import ping_ends
from heterps_hpc.runtime.health.preflight import check_world
from heterps_hpc.runtime.measure.layer_timer import StepTimes
from heterps_hpc.runtime.measure.model_info import layer_info, table_loads, tensor_info
from heterps_hpc.runtime.measure.new_rows import new_row_seconds, reserve_as_the_job
from heterps_hpc.runtime.measure.window import window_time
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.rank_program import End, Start, run_program
from heterps_hpc.runtime.training import Training


def measure(start: Start) -> End:
    """Run a few steps and write what they took."""
    job, layout, world = start.job, start.layout, start.comm
    k = layout.num_ranks
    group = world.Split(world.rank // k, world.rank)
    assert isinstance(group, MPI.Intracomm)
    if world.size >= k and world.size % k:
        raise UserError(f"{world.size} ranks do not make whole groups of {k}; start a multiple")
    check_world(group, layout, reducer=job.train.reducer)
    link = ping_ends(world)
    rank = Rank(group, job, layout, Dataset.open(job.data.train))
    reserve_as_the_job(rank)
    times, sent = timed_training(rank)
    found = _summarise(rank, times, sent, link)
    on_node = world.Split_type(MPI.COMM_TYPE_SHARED).size
    found = found.model_copy(update={"node_ranks": on_node})
    everyone = world.gather(found if group.rank == 0 else None, root=0)
    if everyone is not None:
        groups = [item for item in everyone if item is not None]
        _average(groups).save(start.run_dir.measured)
    rank.close()
    return End()


class Sent(NamedTuple):
    """What this rank sends to others in one batch."""

    num_bytes: float
    num_messages: float


@dataclass(frozen=True)
class RankFigures:
    """What one rank found, of a typical step."""

    layer_seconds: dict[str, float]
    phase_seconds: dict[Phase, float]
    step_seconds: float
    sent: Sent
    new_row_seconds: float  # of one row
    creating_seconds: float  # of the rows that a step creates
    window_seconds: float  # of loading a window of data
    table_seconds: dict[str, float]  # the processor's, by table
    stretch: float


def timed_training(rank: Rank) -> tuple[StepTimes, Sent]:
    """Train the measured batches: their times, and what this rank sends in one."""
    spec = rank.job.measure
    owners = rank.model.layers_of_tables()
    layer_of_table = {table: layers[0] for table, layers in owners.items()}
    tables = {} if rank.tables is None else rank.tables.tables
    times = StepTimes(layer_of_table, rank.timer, rank.device, spec, tables)
    training = Training(rank, observer=times)
    num_batches = training.run().steps
    if len(times.steps) < spec.batches:
        raise UserError(
            f"measuring was stopped after {len(times.steps)} of {spec.batches} batches; "
            "measure again"
        )
    counts = (training.exchange.bytes_sent, training.exchange.messages_sent)
    sent = Sent(*(sum(count.values()) / num_batches for count in counts))
    training.close()
    return times, sent


def _summarise(rank: Rank, times: StepTimes, sent: Sent, link: LinkTime | None) -> Measured:
    """Means over typical steps; over the ranks of the group, the slowest counts."""
    job, layout = rank.job, rank.world.layout
    layers = {layer.name: times.mean_layer(layer.name) for layer in rank.model.layers}
    window = window_time(rank)
    new_row = new_row_seconds(rank)
    phases = times.mean_phases()
    _share(layers, times.layers_with_tables, phases, (Phase.PULL, Phase.PUSH))
    if rank.device.is_host:  # elsewhere phases are the host's seconds, and layers the device's
        dense = [name for name in layers if name not in times.layers_with_tables]
        _share(layers, dense, phases, (Phase.FORWARD, Phase.BACKWARD))
    tables, creating = _table_seconds(rank, times, new_row)
    for name, seconds in creating.items():
        layers[name] = max(0.0, layers[name] - seconds)
    names = sorted(phases)
    _share_update(layers, rank, times.mean_update())
    mine = RankFigures(
        layer_seconds=layers,
        phase_seconds=phases,
        step_seconds=times.mean_step(),
        sent=sent,
        new_row_seconds=new_row,
        creating_seconds=sum(creating.values()),
        window_seconds=window.seconds,
        table_seconds=tables,
        stretch=times.stretch(),
    )
    ranks = rank.world.control.allgather(mine)
    model, shapes, manifest = rank.model, rank.shapes, rank.dataset.manifest
    return Measured(
        pool=layout.components[0].pool,
        device=layout.components[0].device,
        num_ranks=layout.num_ranks,
        batch_size=job.train.batch_size,
        micro_batches=job.train.micro_batches,
        model=model.name,
        model_fingerprint=model.fingerprint(),
        layers=tuple(layer_info(model, shapes, job, manifest)),
        tensors=tuple(tensor_info(model, shapes, job)),
        tables=_measured_loads(
            table_loads(model, job, manifest),
            [each.table_seconds for each in ranks],
            job.train.batch_size,
        ),
        layer_seconds=_of_the_group(
            [each.layer_seconds for each in ranks], times.layers_with_tables
        ),
        phase_seconds={
            str(name): _mean(each.phase_seconds.get(name, 0.0) for each in ranks) for name in names
        },
        least_phase_seconds={
            str(name): min(each.phase_seconds.get(name, 0.0) for each in ranks) for name in names
        },
        step_seconds=max(each.step_seconds for each in ranks),
        window_rows=window.rows,
        window_seconds=_mean(each.window_seconds for each in ranks),
        new_row_seconds=_mean(each.new_row_seconds for each in ranks),
        creating_seconds=_mean(each.creating_seconds for each in ranks),
        bytes_sent=_mean(each.sent.num_bytes for each in ranks),
        messages_sent=_mean(each.sent.num_messages for each in ranks),
        stretch=_mean(each.stretch for each in ranks),
        link=link,
    )


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _of_the_group(
    ranks: Sequence[Mapping[str, float]], embeddings: Collection[str]
) -> dict[str, float]:
    """Seconds of layers: of dense ones in the mean of ranks that do the same; of embeddings on the
    rank whose shards take longest, as the others wait for its rows."""
    slowest = max(ranks, key=lambda own: sum(own[name] for name in embeddings))
    return {
        name: slowest[name] if name in embeddings else _mean(own[name] for own in ranks)
        for name in ranks[0]
    }


def _table_seconds(
    rank: Rank, times: StepTimes, new_row: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Of a typical step: the processor's for every table, without creating rows; and, by the clock,
    those of creating them, by layer."""
    layer_of_table = {name: layers[0] for name, layers in rank.model.layers_of_tables().items()}
    own: dict[str, float] = {}
    creating: dict[str, float] = {}
    for name in rank.tables.tables if rank.tables is not None else ():
        worked = times.mean_table(name)
        new = min(new_row * times.mean_new_rows(name), worked * times.stretch())
        own[name] = worked - new / times.stretch()
        layer = layer_of_table[name]
        creating[layer] = creating.get(layer, 0.0) + new
    return own, creating


def _measured_loads(
    loads: Sequence[TableLoad], ranks: Sequence[dict[str, float]], batch_size: int
) -> tuple[TableLoad, ...]:
    """The tables with the processor seconds per sample of their shards on all ranks together: a key
    of a large table takes several times as long as one of a table that fits into the cache."""
    return tuple(
        load.model_copy(update={"work": sum(own.get(load.name, 0.0) for own in ranks) / batch_size})
        for load in loads
    )


def _share(
    layers: dict[str, float],
    names: Collection[str],
    phases: Mapping[Phase, float],
    theirs: Collection[Phase],
) -> None:
    """All of the phases that some layers work in is theirs, in proportion: what lies between them
    (copies and sums of what tables give and take, a quota's pauses) shrinks with a rank's part of
    the batch as they do, and is not a rank's whatever its layers."""
    own = sum(layers[name] for name in names)
    whole = sum(phases.get(phase, 0.0) for phase in theirs)
    if 0 < own < whole:
        for name in names:
            layers[name] *= whole / own


def _share_update(layers: dict[str, float], rank: Rank, seconds: float) -> None:
    """The optimizer works on one flat tensor: each layer pays for its part of it."""
    if rank.modules is None:
        return
    modules = rank.modules.modules
    sizes = {name: sum(p.numel() for p in module.parameters()) for name, module in modules.items()}
    for name, size in sizes.items():
        layers[name] += seconds * size / max(sum(sizes.values()), 1)


def _average(groups: Sequence[Measured]) -> Measured:
    """The mean over groups that ran at the same time."""

    def mean(dicts: Sequence[dict[str, float]]) -> dict[str, float]:
        return {name: _mean(d.get(name, 0.0) for d in dicts) for name in dicts[0]}

    return groups[0].model_copy(
        update={
            "layer_seconds": mean([group.layer_seconds for group in groups]),
            "phase_seconds": mean([group.phase_seconds for group in groups]),
            "least_phase_seconds": mean([group.least_phase_seconds for group in groups]),
            "step_seconds": _mean(group.step_seconds for group in groups),
        }
    )


if __name__ == "__main__":
    sys.exit(run_program(measure, sys.argv[1:]))
