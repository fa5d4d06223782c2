"""The baselines that the paper compares with, each a few lines, all with one signature."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.exact.solver import solve
from heterps_hpc.plan.problem import Ints, Problem
from heterps_hpc.plan.search import Budget, Found, Search

BLOCK = 4096


def exact(table: StageTable, budget: Budget) -> Found:
    """The certified optimum itself."""
    search = Search(table, budget)
    solution = solve(table, seconds=budget.seconds, clock=budget.clock)
    if solution.choices is not None:
        search.offer(solution.choices)
    return search.found(complete=solution.proven)


def brute_force(table: StageTable, budget: Budget) -> Found:
    """Every placement in turn, until the budget is used."""
    search = Search(table, budget)
    problem = table.problem
    counter = itertools.product(range(problem.num_pools), repeat=problem.num_layers)
    for block in _blocks(counter):
        search.score(block)
        if search.over:
            break
    return search.found(complete=search.exhausted)


def random(table: StageTable, budget: Budget) -> Found:
    """Placements drawn uniformly."""
    search = Search(table, budget)
    rng = np.random.default_rng(budget.seed)
    shape = (BLOCK, table.problem.num_layers)
    while not search.over:
        search.score(rng.integers(0, table.problem.num_pools, size=shape))
    return search.found(complete=search.exhausted)


def greedy(table: StageTable, budget: Budget) -> Found:
    """Layer by layer the pool of least money, as if all later layers stayed on it."""
    search = Search(table, budget, lateness=1.0)  # its first plans are late, and that may change
    problem = table.problem
    chosen = np.zeros(problem.num_layers, dtype=np.int64)
    for layer in range(problem.num_layers):
        tries = np.tile(chosen, (problem.num_pools, 1))
        tries[:, layer:] = np.arange(problem.num_pools)[:, None]
        chosen = tries[int(np.argmin(search.score(tries)))]
    return search.found()


def heuristic(table: StageTable, budget: Budget) -> Found:
    """Embeddings on CPUs, all else on accelerators; no plan where one of the two is missing."""
    search = Search(table, budget)
    problem = table.problem
    cpus, gpus = _kinds(problem)
    if not cpus or not gpus:
        return search.found()
    embeds = problem.layers.is_embedding
    search.score(np.array([np.where(embeds, cpu, gpu) for cpu in cpus for gpu in gpus]))
    return search.found()


def cpu_only(table: StageTable, budget: Budget) -> Found:
    """All layers on one CPU pool."""
    return _one_pool(table, budget, _kinds(table.problem)[0])


def gpu_only(table: StageTable, budget: Budget) -> Found:
    """All layers on one accelerator pool."""
    return _one_pool(table, budget, _kinds(table.problem)[1])


def genetic(table: StageTable, budget: Budget) -> Found:
    """pymoo's genetic algorithm over integer placements."""
    from pymoo.algorithms.soo.nonconvex.ga import GA
    from pymoo.core.problem import Problem as PymooProblem
    from pymoo.operators.crossover.pntx import TwoPointCrossover
    from pymoo.operators.mutation.pm import PM
    from pymoo.operators.repair.rounding import RoundingRepair
    from pymoo.operators.sampling.rnd import IntegerRandomSampling
    from pymoo.optimize import minimize

    search = Search(table, budget)
    problem = table.problem
    if problem.num_pools == 1:
        return _one_pool(table, budget, [0])

    class Placements(PymooProblem):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(
                n_var=problem.num_layers, n_obj=1, xl=0, xu=problem.num_pools - 1, vtype=int
            )

        def _evaluate(self, x: Ints, out: dict[str, object], *_: object, **__: object) -> None:
            out["F"] = np.log(search.score(x.astype(np.int64)))

    algorithm = GA(
        pop_size=200,
        sampling=IntegerRandomSampling(),
        crossover=TwoPointCrossover(),
        mutation=PM(prob=1.0, prob_var=1.0 / problem.num_layers, eta=3.0, repair=RoundingRepair()),
        eliminate_duplicates=True,
    )
    ending = _until(search)
    minimize(Placements(), algorithm, ending, seed=budget.seed, verbose=False)
    return search.found(complete=search.exhausted)


def bayesian(table: StageTable, budget: Budget) -> Found:
    """optuna's tree-structured Parzen estimator, one categorical variable per layer."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = Search(table, budget)
    problem = table.problem
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=budget.seed))
    pools = list(range(problem.num_pools))

    def objective(trial: optuna.Trial) -> float:
        placement = [trial.suggest_categorical(name, pools) for name in problem.layers.names]
        if search.over:
            trial.study.stop()
        return float(np.log(search.score(np.array([placement]))[0]))

    study.optimize(objective, n_trials=budget.max_placements)  # ends when the search is over
    return search.found(complete=search.exhausted)


def _until(search: Search) -> object:
    """pymoo's ending: when the search is over."""
    from pymoo.core.termination import Termination

    class Until(Termination):  # type: ignore[misc]
        def _update(self, algorithm: object) -> float:
            return 1.0 if search.over else 0.0

    return Until()


def _one_pool(table: StageTable, budget: Budget, pools: list[int]) -> Found:
    search = Search(table, budget)
    if not pools:
        return search.found()
    search.score(np.repeat(np.array(pools)[:, None], table.problem.num_layers, axis=1))
    return search.found()


def _kinds(problem: Problem) -> tuple[list[int], list[int]]:
    """CPU pools and accelerator pools."""
    is_accelerator = problem.pools.is_accelerator
    cpus = [int(i) for i in np.flatnonzero(~is_accelerator)]
    return cpus, [int(i) for i in np.flatnonzero(is_accelerator)]


def why_no_plan(problem: Problem, scheduler: str) -> str:
    """Why a scheduler that looks at some placements only found none."""
    cpus, accelerators = _kinds(problem)
    if scheduler in ("gpu-only", "heuristic") and not accelerators:
        return "no accelerator pool"
    if scheduler in ("cpu-only", "heuristic") and not cpus:
        return "no CPU pool"
    return "no plan that meets the goal"


def _blocks(counter: Iterator[tuple[int, ...]]) -> Iterator[Ints]:
    while block := list(itertools.islice(counter, BLOCK)):
        yield np.array(block, dtype=np.int64)
