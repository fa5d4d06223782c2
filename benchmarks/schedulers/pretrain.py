"""Train the policy of `rl` ahead, over many random questions of all families.

    python -m benchmarks.schedulers.pretrain [--cell lstm|elman] [--steps N] [--seed S]

writes heterps_hpc/plan/policy.safetensors, with a record of how it was made in its metadata; the
weights of the other cell in it are kept (`--show` prints the records). Each step visits one
question: the policy draws placements, offspring of the best are tried, and the weights climb

    Σ_n (R_n − mean R) / σ · ∇ log π(a_n) + IMITATION · ∇ log π(best so far)

A question is visited a few times, so that the best so far gets better, and then replaced by a new
one. Nothing but the cost model is asked: no rule and no exact solver.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from benchmarks.record import machine
from benchmarks.schedulers.families import FAMILIES, Family, question
from heterps_hpc.plan.cost_model import StageTable
from heterps_hpc.plan.features import Features, features_of
from heterps_hpc.plan.policy import WEIGHTS, Elite, Policy, make_policy
from heterps_hpc.plan.search import Budget, Search

STEPS = 60_000
LEARNING_RATE = 2e-3  # falls to a twentieth of it
VISITS = 6  # of one question
LIVE = 24  # questions in turn
BATCH = 4  # visits per step of Adam
NUM_DRAWS = 48
IMITATION = 1.0
ENTROPY = 0.01
SAVE_EVERY = 500  # steps


@dataclass
class Live:
    """A question under training."""

    family: str
    search: Search
    features: Features
    elite: Elite = field(default_factory=Elite)
    visits: int = 0


def new_question(number: int, seed: int) -> Live:
    """The next question: of any family, with a floor that is tight, loose or none."""
    rng = np.random.default_rng([seed, number])
    family = FAMILIES[str(rng.choice(list(FAMILIES)))]
    problem = question(varied(family, rng), "train", number, rounds=4)
    if rng.random() < 0.1:
        problem = problem.with_floor(0.0)
    search = Search(StageTable(problem), Budget(seconds=float("inf")))
    return Live(family.name, search, features_of(search.table))


def varied(family: Family, rng: np.random.Generator) -> Family:
    """The family with a wider range of floors and sizes than it is judged by."""
    floor = family.floor if rng.random() < 0.7 else (0.3, 0.8)
    layers = (4, family.layers[1]) if family.layers[1] <= 24 else (24, 60)
    pools = (8, 64) if family.pools[0] > 8 else family.pools
    return replace(family, floor=floor, layers=layers, pools=pools)


def visit(
    live: Live, policy: Policy, generator: torch.Generator, rng: np.random.Generator
) -> tuple[torch.Tensor, float]:
    """Draw, and try offspring of the best; the gain to climb, and log of best drawn / best."""
    drawn = policy.draw(live.features, NUM_DRAWS, generator)
    money = live.elite.score(live.search, drawn)
    live.elite.mutate(live.search, rng)
    live.visits += 1
    reward = -torch.tensor(np.log(money), dtype=torch.float32)
    advantage = ((reward - reward.mean()) / (reward.std() + 1e-3)).clamp(-3.0, 3.0)
    both = np.concatenate([drawn, live.elite.placements[:1]])
    log_prob, entropy = policy(live.features, both)
    length = drawn.shape[1]
    gain = (advantage * log_prob[:-1]).mean() / length**0.5
    gain = gain + IMITATION * log_prob[-1] / length + ENTROPY * entropy
    return gain, float(np.log(money.min() / live.elite.money[0]))


def train(cell: str, steps: int, stop_after: int, seed: int) -> None:
    """Train for `stop_after` steps, with the learning rates of a training of `steps`."""
    torch.set_num_threads(1)
    policy, _ = make_policy(cell, seed, pretrained=False)
    optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    live: list[Live] = []
    host = machine()
    num_questions, above, began = 0, [], time.monotonic()
    last = min(steps, stop_after)
    for step in range(last):
        if len(live) < LIVE:
            live.append(new_question(num_questions, seed))
            num_questions += 1
        index = step % len(live)
        gain, gap = visit(live[index], policy, generator, rng)
        (-gain / BATCH).backward()
        if live[index].visits == VISITS:
            above.append(gap)
            del live[index]
        if (step + 1) % BATCH == 0:
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * (1 - 0.95 * step / steps)
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == last:
            record = {
                "command": f"python -m benchmarks.schedulers.pretrain --cell {cell} "
                f"--steps {steps} --stop-after {step + 1} --seed {seed}",
                "questions": num_questions,
                "seconds": round(time.monotonic() - began),
                "cpu_seconds": round(time.process_time()),
                "best draw above the best known": summary(above),
                "machine": host,
            }
            save(policy, cell, record)
            print(f"step {step + 1}: {record['seconds']} s, {summary(above)}", flush=True)


def summary(above: list[float]) -> str:
    """How far the best of a question's draws is above the best plan known for it, lately."""
    middle, most = np.quantile(np.expm1(above[-400:] or [0.0]), [0.5, 0.9])
    return f"median {middle:.1%}, 90th percentile {most:.1%}"


def save(policy: Policy, cell: str, record: dict[str, Any]) -> None:
    """Write the weights and the record of one cell; those of the other stay."""
    tensors = load_file(WEIGHTS) if WEIGHTS.exists() else {}
    kept = {name: value for name, value in tensors.items() if not name.startswith(f"{cell}.")}
    own = {f"{cell}.{name}": value.contiguous() for name, value in policy.state_dict().items()}
    save_file(kept | own, WEIGHTS, metadata=records() | {cell: json.dumps(record)})


def records() -> dict[str, str]:
    """How the weights of each cell were made."""
    if not WEIGHTS.exists():
        return {}
    with safe_open(WEIGHTS, framework="pt") as file:
        return dict(file.metadata() or {})


def main() -> None:
    """Train one cell and write its weights and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cell", choices=("lstm", "elman"), default="lstm")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--stop-after", type=int, default=10**9, help="end before the last step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print the records of the weights")
    options = parser.parse_args()
    if options.show:
        for cell, record in records().items():
            print(cell, json.dumps(json.loads(record), indent=1))
        return
    train(options.cell, options.steps, options.stop_after, options.seed)


if __name__ == "__main__":
    main()
