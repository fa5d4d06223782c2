"""Submitting from an environment without MPI, as on many login nodes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from heterps_hpc.errors import UserError
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.launch.slurm import launcher
from heterps_hpc.launch.slurm.launcher import SlurmLauncher
from heterps_hpc.rundir import RunDir
from tests.launch.values import make_cluster, make_job, make_layout


@pytest.fixture(autouse=True)
def no_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launcher, "find_spec", lambda name: None)


def request(folder: Path, **site: object) -> LaunchRequest:
    cluster = make_cluster(**site)
    layout = make_layout(cluster, ("cpu", 1), ("gpu", 1))
    return LaunchRequest(RunDir(folder / "run"), layout, make_job(), cluster)


@pytest.mark.parametrize(
    ("site", "plugin"),
    [({}, "pmi2"), ({"srun_mpi": "pmix_v3"}, "pmix_v3"), ({"python": "/env/bin/python"}, "pmi2")],
)
def test_the_script_can_be_looked_at(tmp_path: Path, site: dict[str, str], plugin: str) -> None:
    script = SlurmLauncher().preview(request(tmp_path, **site))
    assert f"--mpi={plugin} " in script
    assert ("OMPI_MCA" in script) == plugin.startswith("pmix")


def test_ranks_that_could_not_start_are_not_submitted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"this environment has no MPI.*site: {python"):
        SlurmLauncher().queue(request(tmp_path))
    assert not (tmp_path / "run").exists()


def test_the_mpi_next_to_the_python_of_the_ranks_counts(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    mpirun.chmod(0o755)
    elsewhere = {"python": str(tmp_path / "python3")}
    assert "--mpi=pmix " in SlurmLauncher().preview(request(tmp_path, **elsewhere))
