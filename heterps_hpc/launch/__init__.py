"""From a layout to running ranks: one mpirun on this machine, or one job across partitions."""
