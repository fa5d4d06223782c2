"""Measures what lies between pools, one rank on each: links, and what messages cost their ends.

    srun … python -m mpi4py -m heterps_hpc.runtime.measure.links RUN_DIR

RUN_DIR holds a layout with a component per pool. Rank 0 writes links.json.
"""

from __future__ import annotations

import sys

from heterps_hpc.dataset import Dataset
from heterps_hpc.profiling.measurement import MeasuredLinks, handling_seconds
from heterps_hpc.runtime.health.ping import ping_components
from heterps_hpc.runtime.health.preflight import check_world
from heterps_hpc.runtime.measure.layer_timer import StepTimes
from heterps_hpc.runtime.measure.program import timed_training
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.rank_program import End, Start, run_program


def measure_links(start: Start) -> End:
    """Ping between every two components, train a few batches across, and write what was seen."""
    world, layout, job = start.comm, start.layout, start.job
    check_world(world, layout, start.component, reducer=job.train.reducer)
    links = ping_components(world, layout)
    rank = Rank(world, job, layout, Dataset.open(job.data.train))
    times, sent = timed_training(rank)
    pool = rank.world.my_stage.pool
    cost = handling_seconds(times.mean_phases()) / max(2 * sent.num_bytes, 1.0)
    besides = None if rank.modules is not None else _besides_phases(times)
    everyone = world.gather((links, pool, cost, besides, times.stretch()), root=0)
    if everyone is not None:
        MeasuredLinks(
            links=tuple(link for part, *_ in everyone for link in part),
            cut_seconds_per_byte={pool: cost for _, pool, cost, *_ in everyone},
            tables_batch_seconds={pool: own for _, pool, _, own, _ in everyone if own is not None},
            stretch={pool: stretch for _, pool, *_, stretch in everyone},
        ).save(start.run_dir.measured_links)
    rank.close()
    return End()


def _besides_phases(times: StepTimes) -> float:
    """What a rank does in a step besides looking up, messages and waiting."""
    return max(0.0, times.mean_step() - sum(times.mean_phases().values()))


if __name__ == "__main__":
    sys.exit(run_program(measure_links, sys.argv[1:]))
