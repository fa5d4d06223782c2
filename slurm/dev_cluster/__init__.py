"""A real Slurm cluster of several nodes on one host, for tests and for trying things out.

slurmctld, munged and one slurmd per node run as ordinary processes: no systemd, no
containers, no cgroups, and nothing is written outside the cluster's own folder. Needs only
the standard library, so that it works before and without `make setup`.
"""
