"""The one list of schedulers that the command line, the tests and the benchmarks walk."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from heterps_hpc.errors import UserError
from heterps_hpc.plan import baselines
from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.search import Budget, Found
from heterps_hpc.validation import nearest

Scheduler = Callable[[StageTable, Budget], Found]


def _rl(table: StageTable, budget: Budget) -> Found:
    from heterps_hpc.plan.policy import rl  # torch only here, so that baselines plan without it

    return rl(table, budget)


def _rl_rnn(table: StageTable, budget: Budget) -> Found:
    from heterps_hpc.plan.policy import rl_rnn

    return rl_rnn(table, budget)


SCHEDULERS: dict[str, Scheduler] = {
    "rl": _rl,
    "rl-rnn": _rl_rnn,
    "exact": baselines.exact,
    "brute-force": baselines.brute_force,
    "greedy": baselines.greedy,
    "genetic": baselines.genetic,
    "bayesian": baselines.bayesian,
    "heuristic": baselines.heuristic,
    "cpu-only": baselines.cpu_only,
    "gpu-only": baselines.gpu_only,
    "random": baselines.random,
}
NEEDS = {"genetic": "pymoo", "bayesian": "optuna"}  # the extra `baselines` of setup.cfg
CHEAP = ("greedy", "heuristic", "cpu-only", "gpu-only")  # milliseconds: run with every plan


def scheduler(name: str) -> Scheduler:
    """The scheduler of that name."""
    if name not in SCHEDULERS:
        raise UserError(f"no scheduler {name!r}; {nearest(name, list(SCHEDULERS))}")
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        raise UserError(
            f"scheduler {name!r} needs {NEEDS[name]}, which is not installed; install the "
            "schedulers for comparison (pip install 'heterps-hpc[baselines]'), or choose another"
        )
    return SCHEDULERS[name]
