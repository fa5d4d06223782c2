"""Measures the links between pools, one rank on each.

    srun … python -m mpi4py -m heterps_hpc.runtime.measure.links RUN_DIR

RUN_DIR holds a layout with a component per pool. Rank 0 writes links.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mpi4py import MPI

from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.layout import Layout
from heterps_hpc.profiling.measurement import MeasuredLinks
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.health.ping import ping_components


def main(arguments: list[str]) -> int:
    """Measure; the exit code is that of the rank program."""
    parser = argparse.ArgumentParser(prog="heterps_hpc.runtime.measure.links", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--component", type=int, default=None)
    run_dir = RunDir(parser.parse_args(arguments).run_dir)
    try:
        measure_links(MPI.COMM_WORLD, run_dir)
    except UserError as error:
        sys.stderr.write(f"heterps: {error}\n")
        return int(ExitCode.USER_ERROR)
    return int(ExitCode.DONE)


def measure_links(world: MPI.Intracomm, run_dir: RunDir) -> None:
    """Ping between every two components and write what was seen."""
    layout = Layout.load(run_dir.layout)
    if world.size != layout.num_ranks:
        raise UserError(
            f"{world.size} ranks in one world, the layout has {layout.num_ranks}; see "
            "`heterps doctor`"
        )
    everyone = world.gather(ping_components(world, layout), root=0)
    if everyone is not None:
        links = tuple(link for part in everyone for link in part)
        MeasuredLinks(links=links).save(run_dir.measured_links)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
