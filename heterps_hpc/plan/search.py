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
from heterps_hpc.plan.scorer import LATENESS, Scorer

NEAR = 1.25  # placements scored within this factor of the best plan are provisioned thoroughly,
EVERY = 1000  # some whenever so many more were scored,
AT_ONCE = 8
RESERVED = 0.1  # and the others at the end, in this share of the time; the best of them exactly
KEPT = 64
NUM_EXACT = 4
LATE = 20.0  # times the best so far that a placement may be scored by the grid, with what its
# lateness costs, to be improved: where fixed and serial parts are large, most good ones start so
EFFORT = 12  # intervals that the exact solver may look at for one placement


@dataclass(frozen=True)
class Budget:
    """How long a scheduler may think."""

    seconds: float = 10.0
    seed: int = 0
    max_placements: int | None = None  # makes a search repeatable whatever the machine's speed
    clock: Callable[[], float] = time.monotonic  # benchmarks count a core's own seconds instead


@dataclass(frozen=True)
class Found:
    """A scheduler's answer; `curve` is (seconds, placements looked at, money) as it got better."""

    choices: tuple[Choice, ...] | None
    money: float
    seconds: float
    num_placements: int
    curve: tuple[tuple[float, int, float], ...] = ()
    complete: bool = True  # False: cut off by the budget before its natural end

    def money_at(self, seconds: float) -> float:
        """Money of the best plan after so many seconds."""
        return min((money for at, _, money in self.curve if at <= seconds), default=math.inf)


@dataclass
class Search:
    """One scheduler's run on one question."""

    table: StageTable
    budget: Budget
    lateness: float = LATENESS  # see Scorer
    money: float = math.inf
    choices: tuple[Choice, ...] | None = None
    num_scored: int = 0  # repeated placements included
    curve: list[tuple[float, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started = self.budget.clock()
        self.scorer = Scorer(self.table, lateness=self.lateness, worth=LATE)
        self.thorough = Scorer(self.table, thorough=True)
        self._scores: dict[bytes, float] = {}
        self._waiting: dict[bytes, float] = {}  # not yet provisioned thoroughly
        self._provisioned: dict[bytes, tuple[float, tuple[Choice, ...]]] = {}
        self._next = EVERY

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.budget.clock() - self.started

    @property
    def num_placements(self) -> int:
        """Placements looked at, each once."""
        return len(self._scores)

    @property
    def over(self) -> bool:
        """Whether to stop: every placement seen, or the budget used."""
        most = self.budget.max_placements
        return self.exhausted or self.over_time or (most is not None and self.num_scored >= most)

    @property
    def exhausted(self) -> bool:
        """Whether every placement there is was looked at."""
        problem = self.table.problem
        return bool(len(self._scores) >= problem.num_pools**problem.num_layers)

    @property
    def over_time(self) -> bool:
        """Whether the seconds are used, but for those that provisioning needs at the end."""
        return self.elapsed >= self.budget.seconds * (1 - RESERVED)

    def score(self, placements: Ints) -> Floats:
        """Money of placements [N, L] (penalised where not valid); keeps the best plan."""
        self.num_scored += len(placements)
        keys = [row.tobytes() for row in np.ascontiguousarray(placements, dtype=np.int16)]
        new = {key: index for index, key in enumerate(keys) if key not in self._scores}
        if new:
            self._score_new(list(new), placements[list(new.values())])
        if self.num_scored >= self._next:
            self._next = self.num_scored + EVERY
            self._provision(AT_ONCE)
        return np.array([self._scores[key] for key in keys])

    def unseen(self, placements: Ints) -> Ints:
        """Those of the placements that were not looked at yet, each once."""
        rows = np.ascontiguousarray(placements, dtype=np.int16)
        first = {row.tobytes(): index for index, row in reversed(list(enumerate(rows)))}
        return placements[sorted(i for key, i in first.items() if key not in self._scores)]

    def _score_new(self, keys: list[bytes], placements: Ints) -> None:
        scores = self.scorer.score(placements)
        self._scores.update(zip(keys, scores.money.tolist(), strict=True))
        money = np.where(scores.valid, scores.money, np.inf)
        best = int(np.argmin(money))
        if money[best] < self.money:
            self.offer(self.scorer.choices(placements[best], scores.ranks[best]))
        # A penalised score may hide a valid plan: it waits without the penalty of one broken bound.
        hoped = np.where(scores.valid, scores.money, scores.money / self.scorer.penalty)
        for index in np.argsort(hoped, kind="stable")[:KEPT]:
            if hoped[index] <= self.money * NEAR:
                self._waiting[keys[index]] = float(hoped[index])

    def finish(self) -> None:
        """Provision what is still waiting, the best placements exactly, in the reserved time."""
        while self._provision(AT_ONCE) and self.elapsed < self.budget.seconds:
            pass
        best = sorted(self._provisioned.items(), key=lambda item: (item[1][0], item[0]))
        for key, (money, start) in best[:NUM_EXACT]:
            left = (self.budget.seconds - self.elapsed) / 2
            if money > self.money * NEAR or left <= 0:
                break
            placement = np.frombuffer(key, dtype=np.int16).tolist()
            exact = provision(self.table, placement, left, start, EFFORT, self.budget.clock)
            if exact.choices is not None:
                self.offer(exact.choices)

    def _provision(self, num: int) -> int:
        """Provision the most promising placements thoroughly; how many there were."""
        waiting = sorted(self._waiting.items(), key=lambda item: (item[1], item[0]))
        self._waiting = {k: hoped for k, hoped in waiting[num:KEPT] if hoped <= self.money * NEAR}
        keys = [key for key, hoped in waiting[:num] if hoped <= self.money * NEAR]
        if not keys:
            return 0
        placements = np.array([np.frombuffer(key, dtype=np.int16) for key in keys], dtype=np.int64)
        scores = self.thorough.score(placements)
        for index in np.flatnonzero(scores.valid):
            choices = self.thorough.choices(placements[index], scores.ranks[index])
            self._provisioned[keys[index]] = (float(scores.money[index]), choices)
            if scores.money[index] < self.money:
                self.offer(choices)
        return len(keys)

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
