"""Small changes of placements, and the plan that such changes alone lead to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from heterps_hpc.plan.cost_model import Choice, StageTable, placement_of
from heterps_hpc.plan.problem import Ints
from heterps_hpc.plan.scorer import Scorer

ROUNDS = 40
NUM_TRIES = 200  # in a round
NUM_KEPT = 8
CROSSED = 0.5  # share of offspring of two placements,
DRAWN = 0.5  # of these, with one that the policy has just drawn,
AS_IT_IS = 0.5  # and of these, without a further change
TWICE = 0.4  # share of the others that is changed twice


def mutations(best: Ints, num: int, num_pools: int, rng: np.random.Generator) -> Ints:
    """Copies of the given placements (best first), each changed in one place."""
    parent = np.minimum(rng.geometric(0.35, num) - 1, len(best) - 1)
    return changed(best[parent], num_pools, rng)


def offspring(
    best: Ints, num: int, num_pools: int, rng: np.random.Generator, drawn: Ints | None = None
) -> Ints:
    """Changed copies too, but of more of the placements: many have a run of layers of another one,
    or of one that the policy has drawn, with or without a further change, and some are changed
    twice: they leave a dead end more easily."""
    first, other = (np.minimum(rng.geometric(0.15, num) - 1, len(best) - 1) for _ in range(2))
    layer = np.arange(best.shape[1])
    ends = np.sort(rng.integers(0, best.shape[1] + 1, (num, 2)), axis=1)
    inside = (layer >= ends[:, :1]) & (layer < ends[:, 1:])
    crossed = inside & (rng.random((num, 1)) < CROSSED)
    source = best[other]
    if drawn is not None:
        of_policy = rng.random((num, 1)) < DRAWN
        source = np.where(of_policy, drawn[rng.integers(0, len(drawn), num)], source)
    tries = np.where(crossed, source, best[first])
    as_it_is = crossed.any(axis=1, keepdims=True) & (rng.random((num, 1)) < AS_IT_IS)
    twice = rng.random((num, 1)) < TWICE
    once = changed(tries, num_pools, rng)
    return np.where(as_it_is, tries, np.where(twice, changed(once, num_pools, rng), once))


def changed(tries: Ints, num_pools: int, rng: np.random.Generator) -> Ints:
    """Each changed in one place: a run of layers goes to another pool or to the pool before or
    after it, or all layers of one pool go to another."""
    num, length = len(tries), tries.shape[1]
    which, layer = np.arange(num), np.arange(length)
    first = rng.integers(0, length, (num,))
    size = np.minimum(rng.geometric(0.3, num), length)
    inside = (layer >= first[:, None]) & (layer < (first + size)[:, None])
    kind = rng.random((num, 1))
    own = tries[which, first][:, None]
    starts = np.concatenate([np.ones((num, 1)), tries[:, 1:] != tries[:, :-1]], axis=1)
    stage = np.cumsum(starts, axis=1)
    whole_stage = stage == stage[which, first][:, None]
    before = tries[which, np.maximum(first - 1, 0)][:, None]
    after = tries[which, np.minimum(first + size, length - 1)][:, None]
    drawn = rng.integers(0, num_pools, (num, 1))
    where = np.where(kind < 0.6, inside, np.where(kind < 0.85, whole_stage, tries == own))
    pool = np.where(kind < 0.15, before, np.where(kind < 0.3, after, drawn))
    return np.where(where, pool, tries)


def descend(
    table: StageTable,
    start: tuple[Choice, ...] | None,
    over: Callable[[], bool],
    *,
    any_plan: bool = False,
) -> tuple[Choice, ...] | None:
    """The cheapest plan that changes lead to, from a plan or from each pool alone; with `any_plan`,
    the first one that is valid, for which speed is what matters."""
    problem, rng = table.problem, np.random.default_rng(0)
    scorer = Scorer(table, seconds_only=any_plan)
    best = np.repeat(np.arange(problem.num_pools)[:, None], problem.num_layers, axis=1)
    if start is not None:
        best = np.array([placement_of(start)])
    found = start
    for _ in range(ROUNDS):
        if over() or (any_plan and found is not None):
            break
        tries = np.concatenate([best, mutations(best, NUM_TRIES, problem.num_pools, rng)])
        tries = np.unique(tries, axis=0)
        scores = scorer.score(tries)
        order = np.argsort(scores.money, kind="stable")[:NUM_KEPT]
        best = tries[order]
        if scores.valid[order[0]]:
            found = scorer.choices(best[0], scores.ranks[order[0]])
    return found
