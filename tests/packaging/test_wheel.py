"""The wheel alone, in an environment of its own and without MPI: plan, render, look, score.

In `make test` its contents are looked at; `make test-wheel` builds it with the C++ core, installs
it and runs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FULL = bool(os.environ.get("HETERPS_FULL"))
# files that are no Python and that a command would miss only when it is used
DATA_FILES = {
    "heterps_hpc/py.typed",
    "heterps_hpc/core/_core.pyi",
    "heterps_hpc/plan/policy.safetensors",
    "heterps_hpc/profiling/sheets/v100.yaml",
    "heterps_hpc/report/page.html.j2",
    "heterps_hpc/report/style.css.j2",
    "heterps_hpc/slurm_templates/job.sbatch.j2",
}
TORCH = next(
    line for line in (ROOT / "requirements/pins.txt").read_text().splitlines()
    if line.startswith("torch==")
)  # fmt: skip


def build_wheel(out: Path, core: str) -> Path:
    """Build in a copy, so that nothing is left in the checkout and nothing of it slips in."""
    copy = out / "source"
    copy.mkdir()
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    for name in filter(None, files):
        if name.startswith(("tests/", "benchmarks/")) or not (ROOT / name).exists():
            continue
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        _copy(ROOT / name, copy / name)
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    environment = {**os.environ, "HETERPS_CORE": core}
    subprocess.run([*words, "-w", str(out), str(copy)], check=True, env=environment, timeout=900)
    return next(out.glob("*.whl"))


def _copy(source: Path, target: Path) -> None:
    if source.is_symlink():
        target.symlink_to(source.readlink())
    else:
        target.write_bytes(source.read_bytes())


def test_the_wheel_has_all_that_commands_need(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(tmp_path, "prebuilt")) as wheel:
        names = set(wheel.namelist())
    assert sorted(DATA_FILES - names) == []
    tops = ("heterps_hpc", "data_prep")
    tracked = {str(path.relative_to(ROOT)) for top in tops for path in (ROOT / top).rglob("*.py")}
    assert sorted(tracked - names) == []
    strangers = [name for name in names if not name.startswith((*tops, "heterps_hpc-"))]
    assert strangers == []


@pytest.mark.skipif(not FULL, reason="installs torch: make test-wheel")
@pytest.mark.timeout(1800)
def test_what_works_without_mpi_from_the_wheel_alone(tmp_path: Path) -> None:
    from tests.docs.sandbox import trained_sandbox

    wheel = build_wheel(tmp_path, "")
    with zipfile.ZipFile(wheel) as opened:
        assert any("_core" in name and name.endswith(".so") for name in opened.namelist())
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q"]
    subprocess.run([*install, TORCH], check=True, timeout=900)
    subprocess.run([*install, str(wheel)], check=True, timeout=900)
    (tmp_path / "work").mkdir()
    with trained_sandbox(tmp_path / "work", measures=False):  # by the tests' environment, with MPI
        use(python)


def use(python: Path) -> None:
    """Everything that needs no ranks, in the working directory."""
    heterps, run = str(python.with_name("heterps")), "runs/ctr-small"
    for words in (
        [str(python), "-c", "import importlib.util as u; assert not u.find_spec('mpi4py')"],
        [heterps, "plan", "job.yaml", "--profile", "profile.json", "--run-dir", "runs/look"],
        [heterps, "launch", "runs/look", "--on", "slurm", "--dry-run"],
        [heterps, "checkpoint", "ls", run],
        [heterps, "checkpoint", "verify", run],
        [heterps, "report", run],
        [heterps, "predict", run, "--data", "rows.csv", "--out", "scores.csv"],
        [heterps, "predict", run, "--data", "data/test"],
        [heterps, "export", run, "out", "--format", "torch"],
        [str(python), "-c", f"import heterps_hpc as hp; hp.load({run!r}).predict('data/test')"],
    ):
        plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(words, env=plain, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        if "--dry-run" in words:
            assert "#SBATCH" in done.stdout
