"""A layout as one Slurm job: render the script, submit it, follow it, end it."""
