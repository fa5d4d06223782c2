"""The `heterps` command: it starts at once, and an installed copy has all that it needs."""

import json
import os
import resource
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "mpi4py", "horovod", "scipy", "h5py", "matplotlib", "optuna", "pymoo", "pyarrow"}
HELP_SECONDS = 0.3


def cpu_seconds_of_help() -> float:
    """Processor time: unlike the wall clock it hardly depends on what else is running."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    heterps = Path(sys.executable).with_name("heterps")
    subprocess.run([heterps, "--help"], check=True, capture_output=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_takes_a_moment() -> None:
    times = [cpu_seconds_of_help() for _ in range(5)]
    assert min(times) <= HELP_SECONDS, f"heterps --help took {min(times):.2f} s at best of 5"


def test_command_line_imports_nothing_heavy() -> None:
    """A login node may have neither MPI nor torch."""
    code = "import json, sys, heterps_hpc.cli; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert HEAVY & {name.split(".")[0] for name in json.loads(done.stdout)} == set()


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Files of a wheel built as `pip install .` does, but with the core left out: it is slow."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a build in the checkout would mix in what earlier ones left
    no_builds = shutil.ignore_patterns("*.so", "__pycache__")
    for name in ("heterps_hpc", "data_prep", "slurm"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=no_builds)
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    words = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source]
    subprocess.run(
        [sys.executable, "-m", "pip", *map(str, words)],
        check=True,
        env={**os.environ, "HETERPS_CORE": "prebuilt"},
        timeout=100,
    )
    (wheel,) = folder.glob("heterps_hpc-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_installed_copy_has_templates_and_types(wheel_names: set[str]) -> None:
    templates = {f"heterps_hpc/slurm_templates/{p.name}" for p in (ROOT / "slurm").rglob("*.j2")}
    assert templates, "there are no sbatch templates in slurm/"
    assert wheel_names >= {"heterps_hpc/py.typed", "heterps_hpc/slurm_templates/__init__.py"}
    assert templates - wheel_names == set()


def test_installed_copy_has_every_data_file_of_the_package(wheel_names: set[str]) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "heterps_hpc", "data_prep"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    source_only = (".cpp", ".hpp", ".h", ".md")
    wanted = {
        name for name in tracked if (ROOT / name).is_file() and not name.endswith(source_only)
    }
    assert wanted, "not a git checkout?"
    assert wanted - wheel_names == set()


def test_installed_copy_has_no_tests_and_no_tools(wheel_names: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"heterps_hpc", "data_prep"}
