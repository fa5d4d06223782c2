"""Question: what a job asks of the planner, put to schedulers and to the exact solver alike.

Mostly the least money under a throughput floor. A budget alone asks for the fastest plan within it:
the least money rises with the floor, so bisection over floors finds the highest that is affordable.
Every scheduler is taken through its own bisection, by its own plans, and so is the exact solver,
whose proofs ("no plan this fast costs less than …") certify the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from heterps_hpc.plan.cost_model import Choice, StageTable, estimate
from heterps_hpc.plan.exact.solver import Objective, Solution, solve
from heterps_hpc.plan.explain import Best
from heterps_hpc.plan.goals import BELOW, Limits
from heterps_hpc.plan.problem import Problem
from heterps_hpc.plan.search import Budget, Found

Scheduler = Callable[[StageTable, Budget], Found]
NUM_FLOORS = 8  # that a scheduler's time is enough for, if it uses its share for each
CLOSE = 1e-3  # bisection of a scheduler ends so close, or when its time is used,
PROVEN = 1e-6  # that of the exact solver here, unless time runs out,
NEAR = 1.02  # and from here on it asks first whether anything at all is faster
WITHIN = 1 + 1e-9  # rounding is not overspending


@dataclass(frozen=True)
class _Priced:
    """The cheapest plan found under a floor, and what no plan costs less than there."""

    choices: tuple[Choice, ...] | None
    samples_per_second: float
    money: float
    bound: float = 0.0


@dataclass(frozen=True, eq=False)
class Question:
    """One question with its limits; `best` is the fastest plan where the goal needs to know it."""

    problem: Problem
    limits: Limits
    best: Best | None = None

    @property
    def objective(self) -> Objective:
        """What is minimised: money, or for a budget alone seconds per batch."""
        return "seconds" if self.limits.budget_only else "money"

    @cached_property
    def table(self) -> StageTable:
        """The costs of all stages under the floor."""
        return self.at(self.limits.floor)

    @cached_property
    def _any_speed(self) -> StageTable:
        return self.at(0.0)

    def at(self, floor: float) -> StageTable:
        """The same under another floor."""
        return StageTable(self.problem.with_floor(floor))

    def cost(self, choices: tuple[Choice, ...]) -> float:
        """$ of the job, or seconds per batch: what is minimised."""
        got = estimate(self._any_speed, choices)
        return got.money if self.objective == "money" else got.seconds_per_batch

    def ask(self, decide: Scheduler, budget: Budget) -> Found:
        """A scheduler's own answer; it sees neither other schedulers' plans nor the optimum."""
        if self.objective == "money":
            answer = decide(self.table, budget)
            too_much = answer.money > self.limits.max_money * WITHIN
            return replace(answer, choices=None, money=math.inf) if too_much else answer
        began, answers = budget.clock(), []

        def at(floor: float) -> _Priced:
            share = replace(budget, seconds=budget.seconds / NUM_FLOORS)
            answers.append(decide(self.at(floor), share))
            return self._priced(answers[-1].choices)

        found, _ = self._fastest_within(at, CLOSE, time.monotonic() + budget.seconds)
        whose = next((answer for answer in answers if answer.choices is found.choices), answers[0])
        return replace(
            whose,
            choices=found.choices,
            money=found.money,
            seconds=budget.clock() - began,
            num_placements=sum(answer.num_placements for answer in answers),
        )

    def certify(self, seconds: float, start: tuple[Choice, ...] | None = None) -> Solution:
        """The exact solver's answer, with its bound."""
        if self.objective == "money":
            return solve(self.table, seconds=seconds, start=start)
        deadline = time.monotonic() + seconds

        def at(floor: float) -> _Priced:
            left = max(0.1, (deadline - time.monotonic()) / 4)
            known = self.best.choices if self.best else None
            answer = solve(self.at(floor), seconds=left, start=known)
            return replace(self._priced(answer.choices), bound=answer.bound)

        found, at_most = self._fastest_within(at, PROVEN, deadline)
        if found.choices is None:
            return Solution(None, math.inf, math.inf, at_most <= 0)
        proven = at_most <= found.samples_per_second * (1 + 2 * PROVEN)
        value = self.problem.batch_size / found.samples_per_second
        bound = value if proven else self.problem.batch_size / at_most
        return Solution(found.choices, value, bound, proven)

    def _priced(self, choices: tuple[Choice, ...] | None) -> _Priced:
        if choices is None:
            return _Priced(None, 0.0, math.inf)
        got = estimate(self._any_speed, choices)
        return _Priced(choices, got.samples_per_second, got.money)

    def _fastest_within(
        self, ask: Callable[[float], _Priced], close: float, deadline: float
    ) -> tuple[_Priced, float]:
        """The fastest plan found within the budget, and what none within it exceeds, in samples/s.

        `ask` answers a floor with the cheapest plan under it.
        """
        assert self.best is not None
        budget, none = self.limits.max_money * WITHIN, _Priced(None, 0.0, math.inf)
        fastest = ask(self.best.samples_per_second * BELOW)
        if fastest.money <= budget:
            return fastest, max(self.best.at_most, fastest.samples_per_second)
        found, high, at_most = ask(0.0), self.best.samples_per_second, self.best.at_most
        if fastest.bound > budget:
            at_most = high
        if found.money > budget:
            return none, 0.0 if found.bound > budget else at_most
        just_above = False
        while high > found.samples_per_second * (1 + close) and time.monotonic() < deadline:
            just_above = not just_above and high < found.samples_per_second * NEAR
            floor = math.sqrt(found.samples_per_second * high)
            if just_above:
                floor = found.samples_per_second * (1 + close)
            answer = ask(floor)
            if answer.money <= budget:
                found = answer
            else:
                high = floor
                at_most = min(at_most, floor) if answer.bound > budget else at_most
        return found, max(at_most, found.samples_per_second)
