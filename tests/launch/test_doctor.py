"""What the doctor makes of what it finds."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from heterps_hpc.commands.run import run as run_job
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.doctor import (
    Check,
    as_table,
    bfloat16_check,
    exit_code_of,
    local_checks,
    parse_plugins,
    plugin_check,
    rank_checks,
    scheduler_check,
)
from heterps_hpc.launch.slurm import slurm_cli
from heterps_hpc.launch.slurm.slurm_cli import SlurmRefusal

GOOD: dict[str, Any] = {
    "mpi_library": "MPICH 5",
    "mpi_threads": "multiple",
    "mpi_size": 2,
    "mpi_sum": 3,
    "torch": "2.13",
    "devices": "2 xpu devices",
    "horovod": "0.28.1",
    "horovod_parts": "MPI",
    "horovod_mpi": True,
    "hdf5": "2",
    "h5py": "3",
    "core_isa": "avx2",
}


def test_a_slurm_that_does_not_answer_is_refused_with_its_reason_in_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: str) -> str:
        raise SlurmRefusal("sinfo: …", "resolve: DNS failed sinfo: fatal: no configuration source")

    monkeypatch.setattr(slurm_cli, "call", refuse)
    with pytest.raises(UserError) as caught:
        run_job(Path("nowhere.yaml"), None, "slurm")  # before the job is read
    said = str(caught.value)
    assert said.startswith("no Slurm answers here (no configuration source); use a login node")


def failed(changes: dict[str, Any]) -> list[str]:
    ranks = [{**GOOD, **changes}] * 2
    return [check.name for check in rank_checks(ranks, 2) if not check.ok]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, []),
        ({"mpi_size": 1, "mpi_sum": 1}, ["MPI world"]),
        ({"mpi_threads": "funneled"}, ["MPI threads"]),
        ({"horovod_mpi": False}, ["Horovod"]),
        ({"error_torch": "ImportError: x"}, ["torch"]),
        ({"error_core": "ImportError: x"}, ["core"]),
        ({"error_hdf5": "ImportError: x"}, ["hdf5"]),
    ],
)
def test_each_fault_is_found(changes: dict[str, Any], names: list[str]) -> None:
    assert failed(changes) == names


@pytest.mark.parametrize(("works", "reducer"), [(True, "Horovod"), (False, "MPI_Allreduce")])
def test_the_reducer_is_named(works: bool, reducer: str) -> None:
    checks = rank_checks([{**GOOD, "horovod_mpi": works}] * 2, 2)
    found = next(check.found for check in checks if check.name == "Horovod")
    assert f"gradients are summed by {reducer}" in found


def test_runs_do_without_horovod_but_not_with_a_useless_one() -> None:
    missing = {**GOOD, "error_horovod": "ImportError: x", "horovod_mpi": None}
    broken = {**GOOD, "error_horovod": "AttributeError: x", "horovod_mpi": None}
    useless = {**GOOD, "horovod_mpi": False}
    for ranks, stops in ((missing, False), (broken, True), (useless, True)):
        check = next(c for c in rank_checks([ranks] * 2, 2) if c.name == "Horovod")
        assert not check.ok
        assert check.local == check.slurm == stops


def test_this_machine_can_run_locally() -> None:
    """The environment that runs the tests must pass its own examination."""
    assert [check for check in local_checks() if check.local and not check.ok] == []


def test_a_processor_that_cannot_do_bfloat16_is_named(tmp_path: Path) -> None:
    assert bfloat16_check().ok  # the tests do without AMX
    dies = tmp_path / "python"
    dies.write_text("#!/bin/sh\nkill -ILL $$\n")
    dies.chmod(0o755)
    check = bfloat16_check(str(dies))
    assert not check.ok
    assert not check.local  # float32 trains all the same
    assert check.found == "ended with -4"
    assert "ONEDNN_MAX_CPU_ISA" in check.remedy


@pytest.mark.parametrize(
    ("need", "local", "slurm", "code"),
    [
        ("both", True, True, ExitCode.DONE),
        ("both", True, False, ExitCode.ONLY_LOCAL),
        ("both", False, True, ExitCode.ONLY_SLURM),
        ("both", False, False, ExitCode.NOTHING_WORKS),
        ("local", True, False, ExitCode.DONE),
        ("slurm", False, True, ExitCode.DONE),
        ("slurm", True, False, ExitCode.ONLY_LOCAL),
    ],
)
def test_exit_code_for_what_works(need: Any, local: bool, slurm: bool, code: ExitCode) -> None:
    assert exit_code_of(need, local=local, slurm=slurm) == code


def test_table_shows_the_remedy_only_where_it_is_needed() -> None:
    out = StringIO()
    checks = [Check("a", "1", True, "fix a"), Check("b", "[2]", False, "fix b")]
    Console(file=out, width=80).print(as_table(checks))
    assert "fix a" not in out.getvalue()
    assert "fix b" in out.getvalue()
    assert "[2]" in out.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "MPI plugin types are...\n\tcray_shasta\n\tnone\n\tpmi2\n\tpmix\n",
        "srun: MPI types are...\nsrun: cray_shasta\nsrun: none\nsrun: pmi2\nsrun: pmix\n",
        "MPI plugin types are...\n\tcray_shasta\n\tnone\n\tpmi2\n\tpmix\n"
        "specific pmix plugin versions available: pmix_v4\n",
    ],
)
def test_plugins_of_srun(text: str) -> None:
    assert parse_plugins(text) == ["cray_shasta", "pmi2", "pmix"]


def test_plugin_must_fit_the_mpi() -> None:
    assert plugin_check(["pmi2"], "mpich").ok
    assert not plugin_check(["pmi2"], "openmpi").ok
    assert "openmpi needs pmix" in plugin_check(["pmi2"], "openmpi").remedy


def test_only_backfill_starts_jobs_of_several_components() -> None:
    assert scheduler_check("X=1\nSchedulerType           = sched/backfill\n").ok
    assert not scheduler_check("SchedulerType           = sched/builtin\n").ok
    assert not scheduler_check("").ok
