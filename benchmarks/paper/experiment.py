"""One model on one cluster at one floor: measure, ask every scheduler, run each distinct plan.

Every result is a file, so that a stopped experiment continues where it was.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.paper.works import make_job
from benchmarks.unlike.cases import ALL_NODES as ALL_POOL
from benchmarks.unlike.one_job import OneJob
from benchmarks.unlike.runs import pools_of
from heterps_hpc.cluster import Cluster
from heterps_hpc.commands.measure import measure
from heterps_hpc.commands.prepare import model_of, ready_data
from heterps_hpc.commands.trials import Trials
from heterps_hpc.config import Job
from heterps_hpc.launch.launcher import Launcher
from heterps_hpc.layout import Layout, Plan, Stage, StageEstimate
from heterps_hpc.model import Model
from heterps_hpc.plan.cost_model import Choice, StageTable, to_plan
from heterps_hpc.plan.explain import best_throughput
from heterps_hpc.plan.problem import problem_of_job
from heterps_hpc.plan.provision import static_ratio, static_server_ratio
from heterps_hpc.plan.schedulers import SCHEDULERS
from heterps_hpc.plan.search import Budget
from heterps_hpc.planning_result import Trial
from heterps_hpc.profile import Profile
from heterps_hpc.rundir import RunDir
from heterps_hpc.sharding import bind_plan

ASKED = tuple(name for name in SCHEDULERS if name != "brute-force")
STATIC = {"StaRatio": static_ratio, "StaPSRatio": static_server_ratio}
FASTEST = "fastest"
ALL_NODES = "all layers on all nodes"
NUM_SAMPLES = 1e6  # money is per million samples


@dataclass(frozen=True)
class Experiment:
    """One model on one cluster at one floor; `folder` keeps everything, what several floors have
    in common once."""

    cluster_name: str
    model: str
    floor_share: float  # of the best throughput
    folder: Path
    trial_seconds: float
    search_seconds: float = 2.0

    @property
    def run(self) -> RunDir:
        """Where its measurements and trials are."""
        return RunDir(self.folder / self.cluster_name / self.model).create()

    @property
    def job(self) -> Job:
        return make_job(self.model, self.folder / "data", self.trial_seconds)

    @property
    def cluster(self) -> Cluster:
        """Its fast nodes stand for accelerators, as the baselines' names mean it."""
        cluster = pools_of(self.cluster_name)
        pools = tuple(
            pool.model_copy(update={"kind": "accelerator" if pool.name == "fast" else "cpu"})
            for pool in cluster.pools
        )
        return cluster.model_copy(update={"pools": pools})

    def one_job(self) -> OneJob:
        """A launcher that keeps all nodes for everything that is run on them."""
        run = RunDir(self.folder / self.cluster_name / f"job-{time.time_ns()}")
        return OneJob(run, self.cluster, self.job, self._model)

    @property
    def _model(self) -> Model:
        """Its data are generated on first use."""
        return model_of(self.job, ready_data(self.job))

    def measure(self, launcher: Launcher) -> None:
        """Make the profile, once."""
        if not self.run.profile.exists():
            measure(self.job, self.cluster, self.run, launcher).save(self.run.profile)

    @cached_property
    def profile(self) -> Profile:
        """As it was measured."""
        return Profile.load(self.run.profile)

    def plans(self) -> dict[str, Plan]:
        """The plan of every scheduler that found one, at the same floor; decided once."""
        path = self.run.path / f"plans-{100 * self.floor_share:.0f}.json"
        if not path.exists():
            found = self._ask()
            path.write_text(json.dumps({name: plan.model_dump() for name, plan in found.items()}))
        saved = json.loads(path.read_text())
        return {name: Plan.parse(plan, str(path)) for name, plan in saved.items()}

    def _ask(self) -> dict[str, Plan]:
        problem = problem_of_job(self.profile, self.cluster, self.job, NUM_SAMPLES)
        best = best_throughput(problem, 20.0)
        if best is None:
            raise RuntimeError(f"{self.model} on {self.cluster_name}: no plan fits")
        table = StageTable(problem.with_floor(self.floor_share * best.samples_per_second))
        budget = Budget(seconds=self.search_seconds, seed=1)
        found: dict[str, tuple[Choice, ...] | None] = {
            name: SCHEDULERS[name](table, budget).choices for name in ASKED
        }
        if found["rl"] is not None:
            placement = [c.pool for c in found["rl"] for _ in range(c.first, c.last + 1)]
            found |= {name: rule(table, placement) for name, rule in STATIC.items()}
        found[FASTEST] = best.choices
        return {name: to_plan(table, c, name) for name, c in found.items() if c is not None}

    @property
    def floor(self) -> float:
        """Samples per second that every plan was asked for."""
        return self.floor_share * self.plans()[FASTEST].estimate.samples_per_second

    def trials(self, launcher: Launcher) -> dict[str, Trial]:
        """Every plan as it really ran; the same stages run once."""
        bench = Trials(self.job, self.cluster, self.run, launcher)
        plans = self.plans() | self._pools_alone()
        found = {
            name: bench.try_plan(name, plan, self._bind(plan, self.cluster))
            for name, plan in plans.items()
        }
        everywhere = everywhere_cluster(self.cluster)
        plan = self._given(everywhere, everywhere.pools[0].name)
        bench = Trials(self.job, everywhere, self.run, launcher)
        found[ALL_NODES] = bench.try_plan(ALL_NODES, plan, self._bind(plan, everywhere))
        return found

    def _pools_alone(self) -> dict[str, Plan]:
        """All layers on all nodes of one pool."""
        return {
            f"{pool.name} alone": self._given(self.cluster, pool.name)
            for pool in self.cluster.pools
        }

    def _given(self, cluster: Cluster, pool_name: str) -> Plan:
        """One stage on all ranks of a pool; nothing is predicted of it."""
        pool = cluster.pool(pool_name)
        ranks = pool.rank_limit
        layers = tuple(layer.name for layer in self.profile.layers)
        stages = (Stage(pool=pool_name, layers=layers, num_ranks=ranks),)
        known = self.plans()[FASTEST].estimate
        hourly = pool.hourly_price(ranks)
        whole = StageEstimate(compute_seconds=0.0, move_seconds=0.0, seconds=0.0)
        costs = {"money_per_hour": hourly, "money": hourly * known.hours}
        estimate = known.model_copy(update={**costs, "stages": (whole,), "binding_stage": 0})
        return Plan(stages=stages, estimate=estimate, scheduler="given")

    def _bind(self, plan: Plan, cluster: Cluster) -> Layout:
        return bind_plan(
            plan.stages,
            model=self._model,
            cluster=cluster,
            job=self.job.name,
            num_partitions=self.job.train.tables.num_partitions,
            table_loads=self.profile.table_loads,
            plan=plan,
        )


def everywhere_cluster(cluster: Cluster) -> Cluster:
    """All nodes as one pool, for a job that does not tell them apart; priced as they are."""
    nodes = sum(pool.max_nodes or 1 for pool in cluster.pools)
    price = sum(pool.price_per_hour * (pool.max_nodes or 1) for pool in cluster.pools)
    first = cluster.pools[0]
    pool = first.model_copy(
        update={
            "name": ALL_POOL,
            "partition": ALL_POOL,
            "price_per_hour": price / nodes,
            "max_nodes": nodes,
            "memory_per_node_gb": min(pool.memory_per_node_gb for pool in cluster.pools),
        }
    )
    return cluster.model_copy(update={"name": f"{cluster.name}-all", "pools": (pool,), "links": ()})


def money_of(trial: Trial) -> float:
    """$ per million samples, as it ran."""
    rate = trial.samples_per_second
    return math.inf if not rate else trial.plan.estimate.money_per_hour / 3600 / rate * 1e6


def cost_against_rl(trials: Mapping[str, Trial]) -> dict[str, float]:
    """How many times as much each scheduler's plan cost as rl's, as both ran."""
    base = money_of(trials["rl"])
    named = [name for name in (*ASKED, *STATIC) if name in trials]
    return {name: money_of(trials[name]) / base for name in named}
