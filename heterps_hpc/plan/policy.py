"""The learned scheduler: a recurrent policy over the layers, trained by REINFORCE.

    features of (layer i, pool p) ─▶ MLP ─▶ x_i,p                      one vector per pair
    x_i−1,a   mean_p x_i,p   max_p x_i,p ─▶ cell ─▶ h_i                LSTM, or Elman for rl-rnn
    π(a_i = p | a_<i) ∝ exp( q(h_i)·x_i,p + w(h_i)·d_i,p + stay_i,p · s(x_i,p) )

d_i,p is what the layers before mean for pool p: whether the last one is there, whether any is, and
how full it is. Nothing depends on how many pools there are or on their order, so one set of
weights, trained ahead over many questions (benchmarks/schedulers/pretrain.py), serves them all.
Without the file of weights the policy learns from nothing.

On a question, the policy is first asked as it is: one greedy placement and some draws. Then each
round draws N placements a ~ π, scores them all at once, and climbs

    Σ_n (R_n − b) / σ · ∇ log π(a_n),      R_n = −log money_n,   b ← γ b + (1 − γ) mean R

with an entropy bonus that fades. Two things are added to the paper: every round also tries new
placements that come of good ones drawn so far, by mutation and by runs of layers of its draws
(local_search.py), and climbs log π of the best.
The policy sees neither the placements of simple rules nor the optimum. Everything is a function of
the seed; only the number of rounds depends on the time.
"""

from __future__ import annotations

import math
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
from torch import nn

from heterps_hpc.plan.cost_model import Choice, StageTable, placement_of
from heterps_hpc.plan.features import NUM_FEATURES, Features, features_of
from heterps_hpc.plan.local_search import offspring
from heterps_hpc.plan.problem import Floats, Ints
from heterps_hpc.plan.search import Budget, Found, Search

LEARNED_CELLS = {"rl": "lstm", "rl-rnn": "elman"}
WEIGHTS = Path(__file__).with_name("policy.safetensors")
NUM_FIRST = 256  # draws before any learning on the question,
SHARPER = 0.7  # half of them from logits divided by this: nearer to the likeliest pools
NUM_DRAWS = 64  # N: placements drawn in a round,
NUM_MUTATIONS = 192  # and new ones that come of the best by mutation, so many times
MUTATED = 8
NUM_ELITE = 24  # best placements that are kept,
APART = 0.15  # half of them ones that differ in this share of the layers
WIDTH = 48  # of x
HIDDEN = 64  # of h
LEARNING_RATE = {True: 2e-3, False: 1e-2}  # with weights, from nothing
BASELINE_DECAY = 0.9  # γ
ENTROPY = 0.03  # bonus at the start
IMITATION = 0.1  # weight of the best placement so far
PATIENCE = 12  # rounds without a better plan before the policy restarts
NOTHING_NEW = 8  # rounds that one counts for in which no placement is new
AFRESH = 2.0  # temperature of its first draws then, to begin elsewhere
MAX_STARTS = 3  # of them without a better plan before the search ends


class Policy(nn.Module):
    """A distribution over pools for every layer, given the layers before."""

    def __init__(self, cell: str) -> None:
        super().__init__()
        self.x = nn.Sequential(nn.Linear(NUM_FEATURES, 64), nn.Tanh(), nn.Linear(64, WIDTH))
        self.cell = {"lstm": nn.LSTM, "elman": nn.RNN}[cell](3 * WIDTH, HIDDEN)
        self.q = nn.Linear(HIDDEN, WIDTH)
        self.w = nn.Linear(HIDDEN, 4)
        self.s = nn.Linear(WIDTH, 1)
        nn.init.zeros_(self.q.weight)
        nn.init.zeros_(self.w.weight)
        with torch.no_grad():
            self.w.bias.copy_(torch.tensor([2.0, 0.0, 0.0, -1.0]))  # rather stay; avoid full pools

    def draw(
        self,
        question: Features,
        num: int,
        generator: torch.Generator | None,
        temperature: float = 1.0,
    ) -> Ints:
        """Draw placements [num, L] layer by layer; without a generator, the likeliest pools."""
        with torch.no_grad():
            x, load = self._read(question)
            from_before, from_around = self._inputs(x)
            stay, used, full = (torch.zeros(num, x.shape[1]) for _ in range(3))
            h, c, drawn = torch.zeros(num, HIDDEN), torch.zeros(num, HIDDEN), []
            before = torch.zeros(num, from_around.shape[1])
            for i, x_i in enumerate(x):
                h, c = self._step(before + from_around[i], h, c)
                now = (h, x_i, stay, used, full + load[i])
                logits = self._logits(*(values[None] for values in now))[0]
                if generator is None:
                    a = logits.argmax(dim=1)
                else:
                    odds = (logits / temperature).softmax(dim=1)
                    a = torch.multinomial(odds, 1, generator=generator)[:, 0]
                drawn.append(a)
                stay = nn.functional.one_hot(a, x.shape[1]).float()
                used, full = torch.maximum(used, stay), full + stay * load[i]
                before = from_before[i, a]
        return np.asarray(torch.stack(drawn, dim=1).numpy(), dtype=np.int64)

    def forward(self, question: Features, placements: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """log π [N] of placements [N, L], and the mean entropy of a decision."""
        x, load = self._read(question)
        a = torch.as_tensor(placements.T)  # [L, N]
        length, num = a.shape
        here = nn.functional.one_hot(a, x.shape[1]).float()  # [L, N, P]
        stay = _shift(here)
        used = _shift(here.cumsum(dim=0).clamp(max=1.0))
        full = _shift((here * load[:, None]).cumsum(dim=0)) + load[:, None]
        before = _shift(x[torch.arange(length)[:, None], a])
        around = _around(x)[:, None].expand(-1, num, -1)
        h, _ = self.cell(torch.cat([before, around], dim=2))
        log_p = self._logits(h, x, stay, used, full).log_softmax(dim=2)
        entropy = -(log_p.exp() * log_p).sum(dim=2).mean()
        return log_p.gather(2, a[:, :, None])[:, :, 0].sum(dim=0), entropy

    def _read(self, question: Features) -> tuple[torch.Tensor, torch.Tensor]:
        """x [L, P, W], and the part of each pool that a layer would fill [L, P]."""
        pairs = torch.as_tensor(question.pairs, dtype=torch.float32)
        return self.x(pairs).tanh(), torch.as_tensor(question.load, dtype=torch.float32)

    def _inputs(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What enters the cell after each (layer, pool), and at each layer whatever was drawn: for
        all draws at once, as a draw calls the cell on little else."""
        weight = self.cell.weight_ih_l0
        from_around = _around(x) @ weight[:, WIDTH:].T + self.cell.bias_ih_l0
        return x @ weight[:, :WIDTH].T, from_around + self.cell.bias_hh_l0

    def _step(
        self, entering: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The cell's next state, [N, H] each; an Elman cell has no c."""
        gates = torch.addmm(entering, h, self.cell.weight_hh_l0.T)
        if isinstance(self.cell, nn.RNN):
            return gates.tanh(), c
        i, f, g, o = gates.chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def _logits(
        self,
        h: torch.Tensor,  # [L, N, H]
        x: torch.Tensor,  # [L, P, W]
        stay: torch.Tensor,  # [L, N, P]: 1 for the pool of the layer before
        used: torch.Tensor,  # [L, N, P]: 1 for pools that have a layer
        full: torch.Tensor,  # [L, N, P]: how full a pool would be with this layer
    ) -> torch.Tensor:
        d = torch.stack([stay, used, full.clamp(max=2.0), torch.log1p(torch.relu(full - 1))])
        w = self.w(h).permute(2, 0, 1)[:, :, :, None]
        logits: torch.Tensor = self.q(h) @ x.transpose(1, 2) + (w * d).sum(dim=0)
        return torch.add(logits, stay * self.s(x).transpose(1, 2))


def _around(x: torch.Tensor) -> torch.Tensor:
    """What a layer's pools look like together, [L, 2 W]."""
    return torch.cat([x.mean(dim=1), x.amax(dim=1)], dim=1)


def _shift(values: torch.Tensor) -> torch.Tensor:
    """What holds before each layer, from what holds after it."""
    return torch.cat([torch.zeros_like(values[:1]), values[:-1]])


def make_policy(cell: str, seed: int, *, pretrained: bool = True) -> tuple[Policy, bool]:
    """A policy with the shipped weights if there are any, else with random ones; and which."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        policy = Policy(cell)
    if not (pretrained and WEIGHTS.exists()):
        return policy, False
    from safetensors.torch import load_file

    tensors = load_file(WEIGHTS)
    own = {k.partition(".")[2]: v for k, v in tensors.items() if k.startswith(f"{cell}.")}
    if not own:
        return policy, False
    policy.load_state_dict(own)
    return policy, True


def rl(table: StageTable, budget: Budget) -> Found:
    """REINFORCE with an LSTM."""
    return reinforce(table, budget, LEARNED_CELLS["rl"])


def rl_rnn(table: StageTable, budget: Budget) -> Found:
    """REINFORCE with an Elman cell."""
    return reinforce(table, budget, LEARNED_CELLS["rl-rnn"])


def reinforce(
    table: StageTable,
    budget: Budget,
    cell: str,
    *,
    pretrained: bool = True,
    start: tuple[Choice, ...] | None = None,
) -> Found:
    """Learn for the budget, or until nothing new comes; the best plan ever drawn is the answer.

    `start` is a plan to continue from: only where the exact solver had to give up on one.
    """
    torch.optim.Adam([torch.zeros(1)])  # imports a second's worth of torch, off the budget
    search = Search(table, budget)
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # same bits everywhere, and small matrices gain nothing
    try:
        starts = 0
        while not search.over and starts < MAX_STARTS:
            before = search.money
            seed = budget.seed + 7919 * search.num_placements
            policy, known = make_policy(cell, seed, pretrained=pretrained)
            learn(search, policy, known, seed, start, afresh=search.num_placements > 0)
            starts = 0 if search.money < before * (1 - 1e-9) else starts + 1
            if table.problem.num_pools == 1:
                break
    finally:
        torch.set_num_threads(torch_threads)
    return search.found(complete=not search.over_time)


def learn(
    search: Search,
    policy: Policy,
    pretrained: bool,
    seed: int,
    start: tuple[Choice, ...] | None = None,
    *,
    afresh: bool = False,
) -> None:
    """Train one policy on the question until it has settled or the search is over."""
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    features = features_of(search.table)
    elite = Elite()
    if start is not None:
        search.offer(start)
        elite.score(search, np.array([placement_of(start)]))
    if not afresh:
        elite.score(search, policy.draw(features, 1, None))
    for temperature in (AFRESH,) if afresh else (1.0, SHARPER):
        elite.score(search, policy.draw(features, NUM_FIRST // 2, generator, temperature))
    optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE[pretrained])
    baseline, sigma, idle, round_ = None, 1.0, 0, 0
    while not search.over and idle < PATIENCE:
        best_before, seen_before = elite.money[0], search.num_placements
        placements = policy.draw(features, NUM_DRAWS, generator)
        reward = -torch.tensor(np.log(elite.score(search, placements)), dtype=torch.float32)
        mean = float(reward.mean())
        baseline = mean if baseline is None else _mix(baseline, mean)
        sigma = _mix(sigma, float(reward.std()) + 1e-6)
        for _ in range(MUTATED):
            elite.mutate(search, rng, placements)
        log_prob, entropy = policy(features, np.concatenate([placements, elite.placements[:1]]))
        advantage = ((reward - baseline) / sigma).clamp(-3.0, 3.0)
        bonus = ENTROPY * 0.98**round_ * entropy
        gain = (advantage * log_prob[:-1]).mean() + bonus + IMITATION * log_prob[-1]
        optimizer.zero_grad()
        (-gain).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 5.0)
        optimizer.step()
        if elite.money[0] < best_before * (1 - 1e-6):
            idle = 0
        else:
            idle += 1 if search.num_placements > seen_before else NOTHING_NEW
        round_ += 1


def apart(placements: Ints, num: int, layers: int) -> list[int]:
    """The first of the placements, and of the others the first ones that differ from all before
    them in so many layers."""
    left = np.ones(len(placements), dtype=np.bool_)
    kept: list[int] = []
    while len(kept) < num and left.any():
        kept.append(int(left.argmax()))
        left &= (placements != placements[kept[-1]]).sum(axis=1) >= layers
    return kept


class Elite:
    """The best placements that one policy has drawn, or that came of them by mutation: in turn the
    best of all, and the best that are unlike each other, so that not all are kin of one."""

    def __init__(self) -> None:
        self.placements: Ints = np.zeros((0, 0), dtype=np.int64)
        self.money: Floats = np.zeros(0)

    def score(self, search: Search, placements: Ints) -> Floats:
        """Score placements and keep the best."""
        money = search.score(placements)
        if len(self.money):
            placements = np.concatenate([self.placements, placements])
        values = np.concatenate([self.money, money])
        order = np.argsort(values, kind="stable")
        ordered = placements[order]
        near = apart(ordered[: 4 * NUM_ELITE], NUM_ELITE // 2, 1)
        far = apart(ordered, NUM_ELITE // 2, max(2, math.ceil(APART * placements.shape[1])))
        in_turn = [place for both in zip_longest(near, far) for place in both if place is not None]
        kept = order[list(dict.fromkeys(in_turn))]
        self.placements, self.money = placements[kept], values[kept]
        return money

    def mutate(self, search: Search, rng: np.random.Generator, drawn: Ints | None = None) -> None:
        """Try mutations that were not looked at yet: of several times as many, as most were."""
        num_pools = search.table.problem.num_pools
        tries = offspring(self.placements, 3 * NUM_MUTATIONS, num_pools, rng, drawn)
        new = search.unseen(tries)[:NUM_MUTATIONS]
        if len(new):
            self.score(search, new)


def _mix(old: float, new: float) -> float:
    return BASELINE_DECAY * old + (1 - BASELINE_DECAY) * new
