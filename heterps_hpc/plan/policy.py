"""The learned scheduler: a recurrent policy over the layers, trained by REINFORCE.

    features of layer 1 ─▶ cell ─▶ cell ─▶ … ─▶ cell      (LSTM, or Elman for rl-rnn)
    pool of layer i−1  ─▶   │       │            │
                            ▼       ▼            ▼
                          pool    pool         pool        π(a_i | a_<i, layers)

Each round draws N placements a ~ π, scores them all at once, and climbs

    Σ_n (R_n − b) / σ · ∇ log π(a_n),      R_n = −log money_n,   b ← γ b + (1 − γ) mean R

with an entropy bonus that fades. Two things are added to the paper, because with 64 pools plain
sampling hardly ever draws two equal neighbours: the policy sees the pool of the layer before and
has one weight for staying on it, and every round also climbs log π of the best placement so far.
The placements of the simple rules are scored first, so that the result is never worse than theirs.
Everything is a function of the seed; only the number of rounds depends on the time.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from heterps_hpc.plan.baselines import try_greedy, try_heuristic
from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.problem import Ints, Problem
from heterps_hpc.plan.search import Budget, Found, Search

NUM_PLACEMENTS = 192  # N
HIDDEN = 48
LEARNING_RATE = 0.02
BASELINE_DECAY = 0.9  # γ
ENTROPY = 0.03  # bonus at the start
IMITATION = 0.1  # weight of the best placement so far
STAY = 2.0  # first value of the weight for staying on a pool
PATIENCE = 60  # rounds without a better plan before the policy starts afresh


class Policy(nn.Module):
    """A distribution over pools for every layer, given the layers before."""

    def __init__(self, num_features: int, num_pools: int, cell: str) -> None:
        super().__init__()
        size = num_features + num_pools + 1  # one more for "no layer before"
        self.cell = nn.LSTMCell(size, HIDDEN) if cell == "lstm" else nn.RNNCell(size, HIDDEN)
        self.head = nn.Linear(HIDDEN, num_pools)
        self.stay = nn.Parameter(torch.tensor(STAY))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.num_pools = num_pools

    def forward(
        self,
        features: torch.Tensor,
        num: int,
        generator: torch.Generator,
        given: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw `num` placements (or follow the given ones); log-probabilities and entropy."""
        state: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None
        before = torch.full((num,), self.num_pools)
        drawn, log_prob, entropy = [], torch.zeros(num), torch.zeros(())
        for layer, row in enumerate(features):
            one_hot = nn.functional.one_hot(before, self.num_pools + 1).float()
            state = self.cell(torch.cat([row.expand(num, -1), one_hot], dim=1), state)
            logits = self.head(state[0] if isinstance(state, tuple) else state)
            log_p = torch.log_softmax(logits + self.stay * one_hot[:, :-1], dim=1)
            if given is None:
                action = torch.multinomial(log_p.detach().exp(), 1, generator=generator)[:, 0]
            else:
                action = given[:, layer]
            log_prob = log_prob + log_p.gather(1, action[:, None])[:, 0]
            entropy = entropy - (log_p.exp() * log_p).sum(dim=1).mean()
            drawn.append(action)
            before = action
        return torch.stack(drawn, dim=1), log_prob, entropy / len(features)


def features_of(problem: Problem) -> torch.Tensor:
    """What the policy reads of each layer: index, kind, input size, weight size, transfer time."""
    layers = problem.layers
    index = np.linspace(0, 1, problem.num_layers)
    kinds = sorted(set(layers.kinds))
    kind = np.array([[k == name for name in kinds] for k in layers.kinds], dtype=np.float64)
    weights = layers.weight_bytes + layers.table_bytes
    transfer = layers.input_bytes[:, None] * problem.pools.uplink_seconds_per_byte[None, :]
    sizes = [layers.input_bytes, weights, transfer.mean(axis=1) * 1e9]
    scaled = [np.log1p(size) / max(1.0, float(np.log1p(size).max())) for size in sizes]
    return torch.tensor(np.column_stack([index, kind, *scaled]), dtype=torch.float32)


def rl(table: StageTable, budget: Budget) -> Found:
    """REINFORCE with an LSTM."""
    return reinforce(table, budget, "lstm")


def rl_rnn(table: StageTable, budget: Budget) -> Found:
    """REINFORCE with an Elman cell."""
    return reinforce(table, budget, "elman")


def reinforce(table: StageTable, budget: Budget, cell: str, *, simple_rules: bool = True) -> Found:
    """Learn for the budget; the best plan ever drawn is the answer.

    Without the simple rules' placements, what is found is what the policy has learned to draw.
    """
    search = Search(table, budget)
    if simple_rules:
        _simple_rules(search)
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # same bits everywhere, and small matrices gain nothing
    try:
        start = 0
        while not search.over and table.problem.num_pools > 1:
            _learn(search, cell, budget.seed + 7919 * start)
            start += 1
    finally:
        torch.set_num_threads(torch_threads)
    return search.found()


def _simple_rules(search: Search) -> None:
    problem = search.table.problem
    pools = np.arange(problem.num_pools)
    search.score(np.repeat(pools[:, None], problem.num_layers, axis=1))
    try_greedy(search)
    try_heuristic(search)


def _learn(search: Search, cell: str, seed: int) -> None:
    """Train one policy until it has settled or the search is over."""
    problem = search.table.problem
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        features = features_of(problem)
        policy = Policy(features.shape[1], problem.num_pools, cell)
    optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)
    baseline, spread = None, 1.0
    best_reward, best, idle, round_ = -math.inf, torch.empty(0), 0, 0
    while not search.over and idle < PATIENCE:
        placements, log_prob, entropy = policy(features, NUM_PLACEMENTS, generator)
        reward = -torch.tensor(np.log(search.score(_ints(placements))), dtype=torch.float32)
        mean = float(reward.mean())
        baseline = mean if baseline is None else _mix(baseline, mean)
        spread = _mix(spread, float(reward.std()) + 1e-6)
        top = int(reward.argmax())
        idle += 1
        if float(reward[top]) > best_reward + 1e-6:
            best_reward, best, idle = float(reward[top]), placements[top : top + 1], 0
        _, best_log_prob, _ = policy(features, 1, generator, best)
        advantage = ((reward - baseline) / spread).clamp(-3.0, 3.0)
        bonus = ENTROPY * 0.98**round_ * entropy
        gain = (advantage * log_prob).mean() + bonus + IMITATION * best_log_prob.mean()
        optimizer.zero_grad()
        (-gain).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 5.0)
        optimizer.step()
        round_ += 1


def _mix(old: float, new: float) -> float:
    return BASELINE_DECAY * old + (1 - BASELINE_DECAY) * new


def _ints(placements: torch.Tensor) -> Ints:
    return np.asarray(placements.numpy(), dtype=np.int64)
