"""The one list of schedulers that the command line, the tests and the benchmarks walk."""

from __future__ import annotations

from collections.abc import Callable

from heterps_hpc.errors import UserError
from heterps_hpc.plan import rivals
from heterps_hpc.plan.cost import StageTable
from heterps_hpc.plan.search import Budget, Found
from heterps_hpc.values import nearest

Scheduler = Callable[[StageTable, Budget], Found]


def _rl(table: StageTable, budget: Budget) -> Found:
    from heterps_hpc.plan.policy import rl  # torch only here, so that rivals plan without it

    return rl(table, budget)


def _rl_rnn(table: StageTable, budget: Budget) -> Found:
    from heterps_hpc.plan.policy import rl_rnn

    return rl_rnn(table, budget)


SCHEDULERS: dict[str, Scheduler] = {
    "rl": _rl,
    "rl-rnn": _rl_rnn,
    "exact": rivals.exact,
    "brute-force": rivals.brute_force,
    "greedy": rivals.greedy,
    "genetic": rivals.genetic,
    "bayesian": rivals.bayesian,
    "heuristic": rivals.heuristic,
    "cpu-only": rivals.cpu_only,
    "gpu-only": rivals.gpu_only,
    "random": rivals.random,
}
CHEAP = ("greedy", "heuristic", "cpu-only", "gpu-only")  # milliseconds: run beside every plan


def scheduler(name: str) -> Scheduler:
    """The scheduler of that name."""
    if name not in SCHEDULERS:
        raise UserError(f"no scheduler {name!r}; {nearest(name, list(SCHEDULERS))}")
    return SCHEDULERS[name]
