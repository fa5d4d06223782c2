"""The command itself is ended at every phase of a run; afterwards nothing that it learned differs.

Each seed is one case: a phase, what is killed or signalled, and a moment within the phase. `make
test-faults` tries a hundred of them; `make test` one.
"""

from __future__ import annotations

import functools
import itertools
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from heterps_hpc.exit_codes import ExitCode
from tests.faults.conftest import LONG, NUM_SEEDS
from tests.faults.harness import PHASES, Setting, Started, damaged_checkpoints, make_setting

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.timeout(900)]

DONE, STOPPED, FAILED = ExitCode.DONE, ExitCode.STOPPED, ExitCode.RANK_FAILED
KILLED = -signal.SIGKILL
BEFORE_RANKS = ("start-up", "measure", "plan")

Action = Callable[[Started], None]


def send(*numbers: signal.Signals) -> Action:
    """Signals to `heterps`, 50 ms apart."""

    def act(started: Started) -> None:
        for number in numbers:
            started.process.send_signal(number)
            time.sleep(0.05)

    return act


def stop_then_kill(started: Started) -> None:
    """Stopped ranks cannot notice that their launcher is gone."""
    started.signal_ranks(signal.SIGSTOP)
    started.process.kill()


# what happens, and the exit codes of `heterps` that docs/faults.md promises for it
ACTIONS: dict[str, tuple[Action, set[int]]] = {
    "SIGKILL of heterps": (send(signal.SIGKILL), {KILLED}),
    "SIGTERM": (send(signal.SIGTERM), {STOPPED}),
    "Ctrl-C": (send(signal.SIGINT), {STOPPED}),
    "SIGHUP": (send(signal.SIGHUP), {STOPPED}),
    "SIGTERM twice": (send(signal.SIGTERM, signal.SIGTERM), {STOPPED, FAILED}),
    "SIGKILL of the ranks": (lambda it: it.signal_ranks(signal.SIGKILL), {FAILED}),
    "SIGKILL of mpirun": (lambda it: it.signal_mpirun(signal.SIGKILL), {FAILED}),
    "stopped ranks, SIGKILL of heterps": (stop_then_kill, {KILLED}),
}
# shuffled, and all of them before any comes again; the first needs no measuring
CASES = [
    ("save", "SIGKILL of the ranks"),
    *random.Random(7).sample(found := list(itertools.product(PHASES, ACTIONS)), len(found)),
]


@pytest.fixture(scope="module")
def setting_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Setting]:
    """The job to disturb in a phase: one that measures and plans only where these are disturbed."""

    @functools.cache
    def make(shape: str | None) -> Setting:
        folder = tmp_path_factory.mktemp("setting")
        setting = make_setting(folder, shape, steps=24, every=5, evaluate_every=6, metrics_every=4)
        setting.run_undisturbed(folder / "undisturbed")
        return setting

    return lambda phase: make(None if phase in BEFORE_RANKS else "1+1" if LONG else "1")


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_any_end_at_any_phase_costs_nothing_but_time(
    seed: int, setting_of: Callable[[str], Setting], tmp_path: Path
) -> None:
    phase, name = CASES[seed % len(CASES)]
    action, codes = ACTIONS[name]
    setting = setting_of(phase)
    run = setting.new_run(tmp_path / "run")
    started = setting.start(run)
    give_up = time.monotonic() + 120
    while started.process.poll() is None and not PHASES[phase](run) and time.monotonic() < give_up:
        time.sleep(0.01)
    time.sleep(random.Random(1000 + seed).random() * setting.length(phase))
    action(started)
    code, printed = started.end()
    assert "Traceback" not in printed
    assert started.left(seconds=10) == []
    # what came too late, or found nothing to end, has changed nothing
    assert code in codes | {DONE}, f"{name} at {phase}: {printed}"
    assert code != DONE or setting.problems(run) == []
    assert damaged_checkpoints(run) == []

    code, printed = setting.start(run, again=True).end()
    assert code == DONE, printed
    assert setting.problems(run) == []
