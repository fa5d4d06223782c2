"""A layout as one Slurm job: render the script, submit it, follow it, end it."""

from heterps_hpc.launch.slurm.follow import cancel, wait
from heterps_hpc.launch.slurm.job_state import ComponentState, JobState, state
from heterps_hpc.launch.slurm.script import render
from heterps_hpc.launch.slurm.submit import job_of, submit

__all__ = ["ComponentState", "JobState", "cancel", "job_of", "render", "state", "submit", "wait"]
