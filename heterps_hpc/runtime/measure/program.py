"""Times every layer of a model on one pool, with the code that trains.

    mpirun -n N python -m mpi4py -m heterps_hpc.runtime.measure.program RUN_DIR

RUN_DIR holds a job and a layout of one stage with k ranks. If more ranks than k are started, they
form further groups that do the same at the same time, so that figures are those of a busy node:
memory bandwidth and clock rates are shared there. Rank 0 writes measured.json.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI

from heterps_hpc.config import Job
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.layout import Layout
from heterps_hpc.profiling.measurement import LinkTime, Measured
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.measure.layer_timer import LayerTimes
from heterps_hpc.runtime.measure.model_info import layer_facts, table_facts, tensor_facts
from heterps_hpc.runtime.training import Trainer

_LINK_BYTES = 1 << 22
_LINK_ROUNDS = 20


class MeasuringTrainer(Trainer):
    """A trainer that keeps the seconds of every step and layer."""

    times: LayerTimes
    measured_from: int
    step_seconds: list[float]
    layer_seconds: list[dict[str, float]]
    phase_seconds: list[dict[str, float]]

    def begin(self, measured_from: int) -> None:
        """Attach the clocks."""
        self.times = LayerTimes()
        self.measured_from = measured_from
        self.step_seconds, self.layer_seconds, self.phase_seconds = [], [], []
        if self.dense is not None:
            self.times.watch_modules(self.dense.modules)
        if self.sparse is not None:
            owners = self.parts.model.layers_of_tables()
            layer_of_table = {table: layers[0] for table, layers in owners.items()}
            self.times.watch_tables(self.sparse.shards, layer_of_table)

    def _one_step(self, step: int) -> None:
        self.times.restart()
        before = dict(self.watch.seconds)
        began = time.perf_counter()
        super()._one_step(step)
        if step >= self.measured_from:
            self.step_seconds.append(time.perf_counter() - began)
            self.layer_seconds.append(dict(self.times.seconds))
            phases = {n: s - before.get(n, 0.0) for n, s in self.watch.seconds.items()}
            self.phase_seconds.append(phases)


def main(arguments: list[str]) -> int:
    """Measure; the exit code is that of the rank program."""
    parser = argparse.ArgumentParser(
        prog="heterps_hpc.runtime.measure.program", description=__doc__
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--component", type=int, default=None)
    run_dir = RunDir(parser.parse_args(arguments).run_dir)
    try:
        measure(MPI.COMM_WORLD, run_dir)
    except UserError as error:
        sys.stderr.write(f"heterps: {error}\n")
        return int(ExitCode.USER_ERROR)
    return int(ExitCode.DONE)


def measure(world: MPI.Intracomm, run_dir: RunDir) -> None:
    """Run a few steps and write what they took."""
    job = Job.parse_saved(run_dir.job)
    layout = Layout.load(run_dir.layout)
    torch.set_num_threads(layout.components[0].cores_per_rank)
    links = _measure_link(world)
    k = layout.num_ranks
    group = world.Split(world.rank // k, world.rank)
    assert isinstance(group, MPI.Intracomm)
    if group.size < k:
        raise UserError(f"{world.size} ranks do not make whole groups of {k}; start a multiple")
    trainer = MeasuringTrainer(group, job, layout)
    trainer.begin(job.measure.warmup)
    trainer.run()
    if len(trainer.step_seconds) < job.measure.batches:
        raise UserError(
            f"measuring was stopped after {len(trainer.step_seconds)} of {job.measure.batches} "
            "batches; measure again"
        )
    found = _summarise(trainer, layout, job, links)
    on_node = world.Split_type(MPI.COMM_TYPE_SHARED).size
    found = found.model_copy(update={"node_ranks": on_node})
    everyone = world.gather(found if group.rank == 0 else None, root=0)
    if everyone is not None:
        groups = [item for item in everyone if item is not None]
        _average(groups).save(run_dir.measured)
    trainer.close()


def _summarise(
    trainer: MeasuringTrainer, layout: Layout, job: Job, link: LinkTime | None
) -> Measured:
    """Medians over steps; over the ranks of the group, the slowest counts."""
    comm = trainer.world.control
    layers = {
        layer.name: _median([step.get(layer.name, 0.0) for step in trainer.layer_seconds])
        for layer in trainer.parts.model.layers
    }
    names = sorted({name for step in trainer.phase_seconds for name in step})
    phases = {
        name: _median([step.get(name, 0.0) for step in trainer.phase_seconds]) for name in names
    }
    _share_update(layers, trainer, phases.get("update", 0.0))
    gathered = comm.allgather((layers, phases, _median(trainer.step_seconds)))
    model, shapes = trainer.parts.model, trainer.parts.shapes
    manifest = trainer.dataset.manifest
    return Measured(
        pool=layout.components[0].pool,
        num_ranks=layout.num_ranks,
        batch_size=job.train.batch_size,
        micro_batches=job.train.micro_batches,
        model=model.name,
        model_fingerprint=model.fingerprint(),
        layers=tuple(layer_facts(model, shapes, job, manifest)),
        tensors=tuple(tensor_facts(model, shapes, job)),
        tables=tuple(table_facts(model, job, manifest)),
        layer_seconds={
            name: float(np.mean([rank[0][name] for rank in gathered])) for name in layers
        },
        phase_seconds={
            name: float(np.mean([rank[1].get(name, 0.0) for rank in gathered])) for name in names
        },
        least_phase_seconds={
            name: float(np.min([rank[1].get(name, 0.0) for rank in gathered])) for name in names
        },
        step_seconds=max(rank[2] for rank in gathered),
        link=link,
    )


def _share_update(layers: dict[str, float], trainer: MeasuringTrainer, seconds: float) -> None:
    """The optimizer works on one flat tensor: each layer pays for its part of it."""
    if trainer.dense is None:
        return
    modules = trainer.dense.modules.modules
    sizes = {name: sum(p.numel() for p in module.parameters()) for name, module in modules.items()}
    for name, size in sizes.items():
        layers[name] += seconds * size / max(sum(sizes.values()), 1)


def _average(groups: Sequence[Measured]) -> Measured:
    """The mean over groups that ran side by side."""

    def mean(dicts: Sequence[dict[str, float]]) -> dict[str, float]:
        return {name: float(np.mean([d.get(name, 0.0) for d in dicts])) for name in dicts[0]}

    return groups[0].model_copy(
        update={
            "layer_seconds": mean([group.layer_seconds for group in groups]),
            "phase_seconds": mean([group.phase_seconds for group in groups]),
            "least_phase_seconds": mean([group.least_phase_seconds for group in groups]),
            "step_seconds": float(np.mean([group.step_seconds for group in groups])),
        }
    )


def _measure_link(comm: MPI.Intracomm) -> LinkTime | None:
    """Ping-pong between the first and the last rank."""
    if comm.size < 2:
        return None
    last = comm.size - 1
    times = []
    for size in (8, _LINK_BYTES):
        buffer = np.zeros(size, dtype=np.uint8)
        comm.Barrier()
        rounds = []
        for _ in range(_LINK_ROUNDS):
            began = time.perf_counter()
            if comm.rank == 0:
                comm.Send(buffer, last)
                comm.Recv(buffer, last)
            elif comm.rank == last:
                comm.Recv(buffer, 0)
                comm.Send(buffer, 0)
            rounds.append((time.perf_counter() - began) / 2)
        times.append(float(np.quantile(rounds, 0.25)))  # the rest is scheduling, not the link
    latency, bulk = comm.bcast(times, root=0)
    rate = _LINK_BYTES / max(bulk - latency, 1e-9)
    return LinkTime(latency_seconds=max(latency, 1e-9), bytes_per_second=rate)


def _median(values: Sequence[float]) -> float:
    return float(statistics.median(values)) if values else 0.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
