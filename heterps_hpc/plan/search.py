"""What all searching schedulers share: a budget, the best plan so far, and the learning curve."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np

from heterps_hpc.plan.cost import Choice, StageTable, estimate
from heterps_hpc.plan.problem import Floats, Ints
from heterps_hpc.plan.provision import provision
from heterps_hpc.plan.score import Scorer

NEAR = 1.10  # placements scored within this factor of the best are provisioned exactly
MOST_AT_ONCE = 2
EFFORT = 12  # intervals that the exact solver may look at for one placement
REACHED = 1e-9


@dataclass(frozen=True)
class Budget:
    """How long a scheduler may think, and (if known) the money at which it may stop."""

    seconds: float = 10.0
    seed: int = 0
    optimum: float | None = None
    most_placements: int | None = None  # makes a search repeatable whatever the machine's speed


@dataclass(frozen=True)
class Found:
    """A scheduler's answer; `curve` is (seconds, placements scored, money) at each improvement."""

    choices: tuple[Choice, ...] | None
    money: float
    seconds: float
    num_placements: int
    curve: tuple[tuple[float, int, float], ...] = ()
    complete: bool = True  # False: cut off by the budget before its natural end


@dataclass
class Search:
    """One scheduler's run on one question."""

    table: StageTable
    budget: Budget
    money: float = math.inf
    choices: tuple[Choice, ...] | None = None
    num_placements: int = 0
    curve: list[tuple[float, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        self.scorer = Scorer(self.table)
        self._provisioned: set[bytes] = set()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def reached(self) -> bool:
        """Whether the known optimum was found."""
        optimum = self.budget.optimum
        return optimum is not None and self.money <= optimum * (1 + REACHED)

    @property
    def over(self) -> bool:
        """Whether to stop: optimum reached or budget used."""
        most = self.budget.most_placements
        used = most is not None and self.num_placements >= most
        return self.reached or used or self.elapsed >= self.budget.seconds

    def score(self, placements: Ints) -> Floats:
        """Money of placements [N, L] (penalised where not valid); keeps the best plan."""
        scores = self.scorer.score(placements)
        self.num_placements += len(placements)
        near = np.flatnonzero(scores.money <= min(self.money * NEAR, scores.money.min() * NEAR))
        tried = 0
        for index in near[np.argsort(scores.money[near], kind="stable")]:
            key = placements[index].astype(np.int16).tobytes()
            if key in self._provisioned:
                continue
            self._provisioned.add(key)
            start = self.scorer.choices(placements[index], scores.ranks[index])
            if not scores.valid[index]:
                continue
            exact = provision(
                self.table, placements[index].tolist(), start=start, most_intervals=EFFORT
            )
            if exact.choices is not None:
                self.offer(exact.choices)
            tried += 1
            if tried >= MOST_AT_ONCE or self.over:
                break
        return scores.money

    def offer(self, choices: tuple[Choice, ...]) -> None:
        """Keep a valid plan if it is the best so far."""
        money = estimate(self.table, choices).money
        if money < self.money * (1 - 1e-12):
            self.money, self.choices = money, choices
            self.curve.append((self.elapsed, self.num_placements, money))

    def found(self, *, complete: bool = True) -> Found:
        """The answer."""
        return Found(
            self.choices, self.money, self.elapsed, self.num_placements, tuple(self.curve), complete
        )
