"""Measures the links between pools, one rank on each.

    srun … python -m mpi4py -m heterps_hpc.runtime.measure.links RUN_DIR

RUN_DIR holds a layout with a component per pool. Rank 0 writes links.json.
"""

from __future__ import annotations

import sys

from heterps_hpc.profiling.measurement import MeasuredLinks
from heterps_hpc.runtime.health.ping import ping_components
from heterps_hpc.runtime.health.preflight import check_world
from heterps_hpc.runtime.rank_program import End, Start, run_program


def measure_links(start: Start) -> End:
    """Ping between every two components and write what was seen."""
    world, layout = start.comm, start.layout
    check_world(world, layout, start.component)
    everyone = world.gather(ping_components(world, layout), root=0)
    if everyone is not None:
        links = tuple(link for part in everyone for link in part)
        MeasuredLinks(links=links).save(start.run_dir.measured_links)
    return End()


if __name__ == "__main__":
    sys.exit(run_program(measure_links, sys.argv[1:]))
