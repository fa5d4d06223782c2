"""What all searching schedulers share: a budget, the best plan so far, and the learning curve."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from heterps_hpc.plan.cost_model import Choice, StageTable, estimate
from heterps_hpc.plan.problem import Floats, Ints
from heterps_hpc.plan.provision import provision
from heterps_hpc.plan.scorer import Scorer

NEAR = 1.10  # placements scored within this factor of the best are provisioned at once,
FAR = 100.0  # and these at the end: a score carries a penalty if the quick pass found no plan
MOST_AT_ONCE = 2
KEPT = 48
EFFORT = 12  # intervals that the exact solver may look at for one placement
LONGEST = 5.0  # seconds for one placement whose score found no plan
REACHED = 1e-9


@dataclass(frozen=True)
class Budget:
    """How long a scheduler may think, and (if known) the money at which it may stop."""

    seconds: float = 10.0
    seed: int = 0
    optimum: float | None = None
    most_placements: int | None = None  # makes a search repeatable whatever the machine's speed
    clock: Callable[[], float] = time.monotonic  # benchmarks count a core's own seconds instead


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
        self.started = self.budget.clock()
        self.scorer = Scorer(self.table)
        self._provisioned: set[bytes] = set()
        self._waiting: dict[bytes, tuple[float, tuple[Choice, ...], bool]] = {}

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.budget.clock() - self.started

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
        return self.reached or used or self.over_time

    @property
    def over_time(self) -> bool:
        """Whether the seconds are used."""
        return self.elapsed >= self.budget.seconds

    def score(self, placements: Ints) -> Floats:
        """Money of placements [N, L] (penalised where not valid); keeps the best plan."""
        scores = self.scorer.score(placements)
        self.num_placements += len(placements)
        for index in np.argsort(scores.money, kind="stable")[:KEPT]:
            key = placements[index].astype(np.int16).tobytes()
            if key not in self._provisioned and scores.money[index] <= self.money * FAR:
                start = self.scorer.choices(placements[index], scores.ranks[index])
                valid = bool(scores.valid[index])
                self._waiting[key] = (float(scores.money[index]), start, valid)
        self._provision(MOST_AT_ONCE, NEAR)
        return scores.money

    def finish(self) -> None:
        """Provision the best placements that are still waiting, while time lasts."""
        self._provision(KEPT, FAR)

    def _provision(self, most: int, factor: float) -> None:
        """Find the exact ranks of the most promising placements."""
        waiting = sorted(self._waiting.items(), key=lambda item: (item[1][0], item[0]))
        for key, (money, start, valid) in waiting[:most]:
            if money > self.money * factor or self.over_time or self.reached:
                break
            self._provisioned.add(key)
            del self._waiting[key]
            placement = np.frombuffer(key, dtype=np.int16).tolist()
            exact = provision(
                self.table,
                placement,
                seconds=min(LONGEST, max(0.1, self.budget.seconds - self.elapsed)),
                start=start if valid else None,
                max_intervals=EFFORT,
            )
            if exact.choices is not None:
                self.offer(exact.choices)
        if len(self._waiting) > KEPT:
            self._waiting = dict(waiting[:KEPT])
            for key in self._provisioned & self._waiting.keys():
                del self._waiting[key]

    def offer(self, choices: tuple[Choice, ...]) -> None:
        """Keep a valid plan if it is the best so far."""
        money = estimate(self.table, choices).money
        if money < self.money * (1 - 1e-12):
            self.money, self.choices = money, choices
            self.curve.append((self.elapsed, self.num_placements, money))

    def found(self, *, complete: bool = True) -> Found:
        """The answer."""
        self.finish()
        return Found(
            self.choices, self.money, self.elapsed, self.num_placements, tuple(self.curve), complete
        )
