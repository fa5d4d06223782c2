"""One question put to every method, and what the answers of a family say together."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.schedulers.families import FAMILIES, question
from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.exact.solver import Solution, solve
from heterps_hpc.plan.features import features_of
from heterps_hpc.plan.policy import NUM_FIRST, make_policy, reinforce
from heterps_hpc.plan.provision import provision
from heterps_hpc.plan.schedulers import CHEAP, SCHEDULERS
from heterps_hpc.plan.scorer import Scorer
from heterps_hpc.plan.search import LATE, Budget, Found

RULES = CHEAP
LONG = 10.0  # seconds, after which rl is looked at in every family
LONGER = "rl 10 s"
SEARCHES = ("random", "brute-force", "genetic", "bayesian", "rl from nothing", "rl", LONGER)
QUICK_SEARCHES = ("random", "genetic", "rl", LONGER)
SAME = 1e-6
CLOCK = time.process_time  # a busy machine takes no time from a method
RULE_SECONDS = 10.0
NUM_SCORES = 6  # placements of a question whose score is compared with exact provisioning,
NUM_SCORED = 6  # of so many questions of each family


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

    def missing(self, asked: Asked) -> tuple[str, ...]:
        """Methods that have no answer yet, and exact where it has no proof and more time now."""
        searches = tuple(name for name in asked.searches if name not in self.money)
        longer = not self.proven and asked.exact_seconds > self.asked.exact_seconds
        return (*searches, "exact") if longer else searches

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
    table = table_of(asked)
    optimum, took = _exact(table, asked.exact_seconds)
    answer = Answer(
        asked=asked,
        num_layers=table.problem.num_layers,
        num_pools=table.problem.num_pools,
        num_stages=len(optimum.choices or ()),
        money={"exact": optimum.value},
        proven=optimum.proven,
        exact_seconds=took,
        exact_bound=optimum.bound,
        ratios=tuple(_score_ratios(table)) if asked.number < NUM_SCORED else (),
    )
    return ask_again(answer, (*RULES, *asked.searches), asked.exact_seconds)


def ask_again(answer: Answer, methods: Sequence[str], exact_seconds: float) -> Answer:
    """Put one question to more methods, or to such as have changed since, or have more time."""
    torch.set_num_threads(1)
    asked, table = answer.asked, table_of(answer.asked)
    for method in methods:
        if method == "exact":
            optimum, took = _exact(table, exact_seconds)
            asked = replace(asked, exact_seconds=exact_seconds)
            found, choices = {"exact": optimum.value}, optimum.choices
            answer = replace(
                answer, proven=optimum.proven, exact_seconds=took, exact_bound=optimum.bound
            )
        elif method == LONGER and _nothing_left(answer):
            found, choices = {LONGER: answer.money["rl"]}, ()
        else:
            plan = _find(method, table, LONG if method == LONGER else asked.seconds)
            found, choices = _money(method, plan, asked.seconds), plan.choices
        if method in SEARCHES:
            asked = replace(asked, searches=tuple(dict.fromkeys((*asked.searches, method))))
        if min(found.values()) < answer.best:
            answer = replace(answer, num_stages=len(choices or ()))
        answer = replace(answer, asked=asked, money=answer.money | found)
    return answer


def _nothing_left(answer: Answer) -> bool:
    """Whether rl had all the time already, or found the certified optimum in less."""
    return answer.asked.seconds >= LONG or (answer.proven and answer.gap("rl") == 0.0)


def table_of(asked: Asked) -> StageTable:
    """The question itself."""
    return StageTable(question(FAMILIES[asked.family], "judge", asked.number))


def _exact(table: StageTable, seconds: float) -> tuple[Solution, float]:
    """The exact solver's answer, and the seconds of a core that it took."""
    began = CLOCK()
    optimum = solve(table, seconds=seconds, clock=CLOCK)
    return optimum, CLOCK() - began


def _find(method: str, table: StageTable, seconds: float) -> Found:
    budget = Budget(seconds=RULE_SECONDS if method in RULES else seconds, seed=1, clock=CLOCK)
    if method == "rl from nothing":
        return reinforce(table, budget, "lstm", pretrained=False)
    return SCHEDULERS["rl" if method == LONGER else method](table, budget)


def _money(method: str, found: Found, seconds: float) -> dict[str, float]:
    """$ of a method's plan; of rl also before it learned on the question, and after a second."""
    if method != "rl":
        return {method: found.money}
    first = [money for _, looked, money in found.curve if looked <= NUM_FIRST + 1]
    return {
        "rl": found.money,
        "rl zero-shot": min(first, default=math.inf),
        "rl 1 s": found.money_at(1.0) if seconds > 1 else found.money,
    }


def _score_ratios(table: StageTable) -> list[float]:
    """Score over exact money of the best draws, those that the score calls invalid as infinite."""
    features = features_of(table)
    policy, _ = make_policy("lstm", 0)
    drawn = policy.draw(features, NUM_FIRST, torch.Generator().manual_seed(0))
    scores = Scorer(table, worth=LATE).score(drawn)  # as a search does
    hoped = np.where(scores.valid, scores.money, scores.money / Scorer.penalty)
    ratios = []
    for index in np.unique(np.argsort(hoped)[:NUM_SCORES]):
        start = None
        if scores.valid[index]:
            start = Scorer(table).choices(drawn[index], scores.ranks[index])
        exact = provision(table, drawn[index].tolist(), 1.0, start, 12, CLOCK)
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
