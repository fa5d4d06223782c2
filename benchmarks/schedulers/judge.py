"""One question put to every method, and what the answers of a family say together."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.schedulers.families import FAMILIES, question
from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.exact.solver import solve
from heterps_hpc.plan.features import features_of
from heterps_hpc.plan.policy import NUM_FIRST, make_policy, reinforce
from heterps_hpc.plan.provision import provision
from heterps_hpc.plan.schedulers import CHEAP, SCHEDULERS
from heterps_hpc.plan.scorer import Scorer
from heterps_hpc.plan.search import Budget, Found

RULES = CHEAP
SEARCHES = ("random", "brute-force", "genetic", "bayesian", "rl from nothing", "rl")
QUICK_SEARCHES = ("random", "genetic", "rl")
SAME = 1e-6
NUM_SCORES = 6  # placements of a question whose score is compared with exact provisioning


@dataclass(frozen=True)
class Asked:
    """A question and how long each method may think, in seconds of one core."""

    family: str
    number: int
    seconds: float
    exact_seconds: float
    searches: tuple[str, ...] = SEARCHES


@dataclass(frozen=True)
class Answer:
    """What every method made of one question: $ by method, infinite for no plan."""

    asked: Asked
    num_layers: int
    num_pools: int
    num_stages: int  # of the best plan known
    money: dict[str, float]
    proven: bool
    exact_seconds: float
    exact_bound: float
    ratios: tuple[float, ...]  # score / exactly provisioned, of the best draws of the policy

    @property
    def best(self) -> float:
        """The certified optimum, or the cheapest plan that any method found."""
        return min(self.money.values())

    def gap(self, method: str) -> float:
        """Per cent above the best plan known; rounding is not a gap."""
        gap = 100 * (self.money[method] / self.best - 1)
        return 0.0 if abs(gap) < 1e-4 else gap


def ask(asked: Asked) -> Answer:
    """Put one question to all methods."""
    torch.set_num_threads(1)
    problem = question(FAMILIES[asked.family], "judge", asked.number)
    table = StageTable(problem)
    began = time.process_time()
    optimum = solve(table, seconds=asked.exact_seconds)
    took = time.process_time() - began
    found = {"exact": optimum.value}
    choices = {"exact": optimum.choices}
    for rule in RULES:
        answer = SCHEDULERS[rule](table, _budget(10.0))
        found[rule], choices[rule] = answer.money, answer.choices
    for name in asked.searches:
        answer = _search(name, table, asked.seconds)
        found[name], choices[name] = answer.money, answer.choices
        if name == "rl":
            first = [money for _, looked, money in answer.curve if looked <= NUM_FIRST + 1]
            found["rl zero-shot"] = min(first, default=math.inf)
            found["rl 1 s"] = answer.money_at(1.0) if asked.seconds > 1 else answer.money
    best = choices[min((m for m in choices), key=lambda method: found[method])]
    return Answer(
        asked=asked,
        num_layers=problem.num_layers,
        num_pools=problem.num_pools,
        num_stages=len(best or ()),
        money=found,
        proven=optimum.proven,
        exact_seconds=took,
        exact_bound=optimum.bound,
        ratios=tuple(_score_ratios(table)),
    )


def _search(name: str, table: StageTable, seconds: float) -> Found:
    if name == "rl from nothing":
        return reinforce(table, _budget(seconds), "lstm", pretrained=False)
    return SCHEDULERS[name](table, _budget(seconds))


def _budget(seconds: float) -> Budget:
    return Budget(seconds=seconds, seed=1, clock=time.process_time)


def _score_ratios(table: StageTable) -> list[float]:
    """Score over exact money of the best draws, those that the score calls invalid as infinite."""
    features = features_of(table)
    policy, _ = make_policy("lstm", 0)
    drawn = policy.draw(features, NUM_FIRST, torch.Generator().manual_seed(0))
    scores = Scorer(table).score(drawn)
    hoped = np.where(scores.valid, scores.money, scores.money / Scorer.penalty)
    ratios = []
    for index in np.unique(np.argsort(hoped)[:NUM_SCORES]):
        start = None
        if scores.valid[index]:
            start = Scorer(table).choices(drawn[index], scores.ranks[index])
        exact = provision(table, drawn[index].tolist(), 1.0, start, max_intervals=12)
        if exact.choices is not None:
            money = scores.money[index] if scores.valid[index] else math.inf
            ratios.append(float(money / exact.value))
    return ratios


def quantiles(values: Sequence[float]) -> tuple[float, float, float, float]:
    """Median, 90th and 95th percentile, worst; infinite ones sort last."""
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]

    return at(0.5), at(0.9), at(0.95), ordered[-1]


def share(conditions: Sequence[bool]) -> float:
    """Per cent of the conditions that hold; all of none."""
    return 100.0 * sum(conditions) / len(conditions) if conditions else 100.0


def not_above(left: float, right: float) -> bool:
    """Whether the left money is not above the right one but for rounding."""
    return left <= right * (1 + SAME) or (math.isinf(left) and math.isinf(right))
