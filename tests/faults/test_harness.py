"""The command itself is ended at every phase of a run; afterwards nothing that it learned differs.

Each seed is one case: a phase, what is killed or signalled, and a delay. `make test-faults` tries a
hundred of them and a full disk at every write; `make test` a few.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from heterps_hpc.checkpoint import newest
from heterps_hpc.checkpoint.verify import verify
from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.rundir import RunDir, steps_of
from tests.equivalence.click_log import write_click_log
from tests.faults.conftest import CASE, NUM_SEEDS
from tests.faults.runs import FAULTY_PROGRAM, Learned, different_bits, learned, make_run

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.timeout(900)]

MARK = "HETERPS_HARNESS"
STEPS = 12
JOB = {
    "name": "harness",
    "model": {"name": "ctrdnn", "embedding_dim": 4, "hidden": [9, 5]},
    "train": {
        "batch_size": 40,
        "epochs": None,
        "steps": STEPS,
        "evaluate_every": 4,
        "reducer": "mpi",
        "tables": {"num_partitions": 4},
    },
    "measure": {"batches": 2, "warmup": 1, "rank_counts": [1]},
    "plan": {"scheduler": "exact", "seconds": 1},
    "checkpoint": {"every_steps": 3},
}

# one rank on one pool: whatever was measured, the plan is the same, and so are the bits
CLUSTER = Cluster(pools=(Pool(name="cpu", price_per_hour=1.0, max_ranks=1, cores_per_node=1),))

PHASES: dict[str, Callable[[RunDir], bool]] = {
    "start-up": lambda run: run.job.exists(),
    "measure": lambda run: any((run.path / "measure").glob("*/history.jsonl")),
    "plan": lambda run: run.profile.exists(),
    "launch": lambda run: run.history.exists(),
    "train": lambda run: run.rank_log(0).exists(),
    "save": lambda run: any(run.checkpoints.glob("0*")),
    "evaluation": lambda run: run.metrics.exists() and "evaluation" in run.metrics.read_text(),
    "end": lambda run: run.summary.exists(),
}
DONE, STOPPED, FAILED = ExitCode.DONE, ExitCode.STOPPED, ExitCode.RANK_FAILED


def send(*numbers: signal.Signals) -> Callable[[subprocess.Popen[str], str], None]:
    """Signals to `heterps`, 50 ms apart."""

    def act(command: subprocess.Popen[str], mark: str) -> None:
        for number in numbers:
            command.send_signal(number)
            time.sleep(0.05)

    return act


def strike(variable: str, number: signal.Signals) -> Callable[[subprocess.Popen[str], str], None]:
    """A signal to a rank or to mpirun."""

    def act(command: subprocess.Popen[str], mark: str) -> None:
        for process, environment in marked(mark):
            is_rank = "PMI_RANK" in environment or "PMIX_RANK" in environment
            with suppress(psutil.Error):
                if is_rank if variable == "rank" else "mpirun" in " ".join(process.cmdline()[:2]):
                    process.send_signal(number)

    return act


def stop_then_kill(command: subprocess.Popen[str], mark: str) -> None:
    """Stopped ranks cannot notice that their launcher is gone."""
    strike("rank", signal.SIGSTOP)(command, mark)
    command.kill()


# what happens, and the exit codes of `heterps` that docs/faults.md promises for it
ACTIONS: dict[str, tuple[Callable[[subprocess.Popen[str], str], None], set[int]]] = {
    "SIGKILL of heterps": (send(signal.SIGKILL), {-9}),
    "SIGTERM": (send(signal.SIGTERM), {STOPPED}),
    "Ctrl-C": (send(signal.SIGINT), {STOPPED}),
    "SIGHUP": (send(signal.SIGHUP), {STOPPED}),
    "SIGTERM twice": (send(signal.SIGTERM, signal.SIGTERM), {STOPPED, FAILED}),
    "SIGKILL of the rank": (strike("rank", signal.SIGKILL), {FAILED}),
    "SIGKILL of mpirun": (strike("mpirun", signal.SIGKILL), {FAILED}),
    "stopped ranks, SIGKILL of heterps": (stop_then_kill, {-9}),
}
CASES = list(itertools.product(PHASES, ACTIONS))


def marked(mark: str) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Everything that a command started."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            environment = process.environ()
            if environment.get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process, environment


def heterps(job: Path, run: RunDir, mark: str, *options: str) -> subprocess.Popen[str]:
    words = ["-m", "heterps_hpc.cli", "run", str(job), "--run-dir", str(run.path), *options]
    return subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("harness")
    write_click_log(folder / "train")
    write_click_log(folder / "test", seed=8)
    CLUSTER.save(folder / "cluster.json")
    data = {"train": str(folder / "train"), "test": str(folder / "test")}
    described = {**JOB, "data": data, "cluster": str(folder / "cluster.json")}
    (folder / "job.json").write_text(json.dumps(described))
    return folder / "job.json"


@pytest.fixture(scope="module")
def reference(job: Path) -> Learned:
    run = RunDir(job.parent / "undisturbed")
    command = heterps(job, run, "none")
    _, errors = command.communicate(timeout=240)
    assert command.returncode == DONE, errors
    return learned_by(run)


def learned_by(run: RunDir) -> Learned:
    found = newest(run.checkpoints)
    assert found is not None
    assert found.step == STEPS
    return learned(found)


@pytest.mark.parametrize("seed", range(NUM_SEEDS if NUM_SEEDS > 10 else 1))
def test_any_end_at_any_phase_costs_nothing_but_time(
    seed: int, job: Path, reference: Learned, tmp_path: Path
) -> None:
    draw = random.Random(1000 + seed)
    # a permutation: seeds are distinct cases until all have been tried
    order = random.Random(7).sample(range(len(CASES)), len(CASES))
    phase, name = CASES[order[seed % len(CASES)]]
    action, codes = ACTIONS[name]
    run, mark = RunDir(tmp_path / "run"), uuid.uuid4().hex
    command = heterps(job, run, mark)
    give_up = time.monotonic() + 120
    while command.poll() is None and not PHASES[phase](run) and time.monotonic() < give_up:
        time.sleep(0.01)
    time.sleep(draw.random() * 0.5)
    action(command, mark)
    _, errors = command.communicate(timeout=120)
    # what came too late, or found no rank to strike, has changed nothing
    assert command.returncode in codes | {DONE}, f"{name} at {phase}: {errors}"
    assert "Traceback" not in errors
    give_up = time.monotonic() + 10
    while (left := list(marked(mark))) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert left == []
    before = newest(run.checkpoints)
    assert before is None or verify(before).problems == []

    again = heterps(job, run, mark, "--resume")
    _, errors = again.communicate(timeout=240)
    assert again.returncode == DONE, errors
    assert different_bits(learned_by(run), reference) == []


# every write of a rank fails once; the short form takes some of the first saves
WRITES = list(itertools.product(range(3), range(1, 61)))


@pytest.mark.parametrize(("rank", "count"), WRITES if NUM_SEEDS > 10 else [(0, 14)])
def test_a_full_disk_at_any_write_is_never_called_done(
    rank: int, count: int, data: Path, undisturbed: Learned, tmp_path: Path
) -> None:
    run = make_run(tmp_path, data, CASE)
    fault = {"rank": rank, "at": "write", "count": count, "do": "full once"}
    hit = run.start(environment={"HETERPS_FAULT": json.dumps(fault)}, program=FAULTY_PROGRAM)
    assert not hit.timed_out
    steps = steps_of(run.directory.checkpoints)
    if hit.returncode == DONE:
        assert steps[-1] == STEPS, "called done without its last state"
    left = newest(run.directory.checkpoints)
    assert left is None or verify(left).problems == []
    if hit.returncode != DONE:
        run.start().check()
    assert different_bits(run.learned(), undisturbed) == []
