"""A real Slurm cluster of several nodes on one host, for tests and for trying things out.

slurmctld, munged and one slurmd per node run as ordinary processes: no systemd, no containers.
Without a file of nodes, all nodes are alike, any user may start them, and nothing is written
outside the cluster's own folder. With one (`up --nodes FILE`, as root) nodes really differ: each
has a network of its own with a link of so many Mbit/s, a CPU quota and a memory limit. Needs only
the standard library, and PyYAML to read such a file.
"""
