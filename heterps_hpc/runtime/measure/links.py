"""Measures what lies between pools, one rank on each: links, and what messages cost their ends.

    srun … python -m mpi4py -m heterps_hpc.runtime.measure.links RUN_DIR

RUN_DIR holds a layout with a component per pool. Rank 0 writes links.json.
"""

from __future__ import annotations

import sys

from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.profiling.measurement import MeasuredLinks, message_seconds_per_byte
from heterps_hpc.runtime.health.ping import ping_components
from heterps_hpc.runtime.measure.program import timed_training
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.rank_program import Start, run_program


def measure_links(start: Start) -> ExitCode:
    """Ping between every two components, train a few batches across, and write what was seen."""
    world, layout = start.comm, start.layout
    if world.size != layout.num_ranks:
        raise UserError(
            f"{world.size} ranks in one world, the layout has {layout.num_ranks}; see "
            "`heterps doctor`"
        )
    links = ping_components(world, layout)
    rank = Rank(world, start.job, layout, Dataset.open(start.job.data.train))
    times, bytes_sent = timed_training(rank)
    pool = rank.world.my_stage.pool
    cost = message_seconds_per_byte(times.mean_phases(), bytes_sent)
    everyone = world.gather((links, pool, cost), root=0)
    if everyone is not None:
        MeasuredLinks(
            links=tuple(link for part in everyone for link in part[0]),
            message_seconds_per_byte={pool: cost for _, pool, cost in everyone},
        ).save(start.run_dir.path / "links.json")
    rank.close()
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(run_program(measure_links, sys.argv[1:]))
