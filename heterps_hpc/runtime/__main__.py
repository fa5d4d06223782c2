"""The rank program: `python -m mpi4py -m heterps_hpc.runtime RUN_DIR`, started by the launchers."""

import sys

from heterps_hpc.runtime.rank_process import main

sys.exit(main(sys.argv[1:]))
