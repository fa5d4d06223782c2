"""`heterps measure`: a short training run of each pool at a few numbers of ranks, then the fit."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from heterps_hpc import format as fmt
from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.commands.measured_before import dependencies, find, keep_key, key_of
from heterps_hpc.commands.prepare import model_of
from heterps_hpc.commands.short_run import start_short_run, without_extras
from heterps_hpc.commands.tasks import Task, task
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.launch.launcher import Launcher, LaunchRequest
from heterps_hpc.layout import Layout, Stage
from heterps_hpc.model import Model
from heterps_hpc.profile import Profile
from heterps_hpc.profiling.fit import fit_profile, mean_loads, with_links
from heterps_hpc.profiling.measurement import Measured, MeasuredLinks
from heterps_hpc.rundir import RunDir
from heterps_hpc.sharding import bind_plan

log = logging.getLogger(__name__)

PROGRAM = "heterps_hpc.runtime.measure.program"
LINKS_PROGRAM = "heterps_hpc.runtime.measure.links"
MOST_BATCHES = 10  # times as many as asked for, if they are short


def measure(
    job: Job, cluster: Cluster, run: RunDir, launcher: Launcher, *, again: bool = False
) -> Profile:
    """Times of every layer on every pool; pools with a data sheet are estimated from it.

    What was measured before for the same is not measured `again`, unless asked for.
    """
    data = Dataset.open(job.data.train)
    model = model_of(job, data)
    described = [pool for pool in cluster.pools if pool.data_sheet is not None]
    measured = [pool for pool in cluster.pools if pool.data_sheet is None]
    if measured:
        with task(run, "measure") as working:
            short = _short_job(job)
            same = dependencies(short, model, data, launcher)
            bench = _Bench(short, cluster, model, run, launcher, working, same, again)
            profile = bench.profile(measured)
    else:  # every pool is described, not measured
        from heterps_hpc.runtime.measure.unmeasured import unmeasured_profile

        profile = unmeasured_profile(job, model, data)
    if described:
        from heterps_hpc.profiling.data_sheets import profile_from_sheets

        profile = profile.merged(profile_from_sheets(profile, described))
    return profile


def starts(job: Job, pool: Pool, launcher: Launcher) -> list[tuple[int, int]]:
    """(k, ranks to start): on a full node for every k, and one rank alone if that is another case.

    Ranks of one node share memory bandwidth and clock rates, so a rank that has a node for itself
    is faster than its figures on a full node predict.
    """
    node = launcher.node_capacity(pool)
    limit = min(pool.rank_limit, node) if launcher.one_machine else pool.rank_limit
    counts = sorted({min(count, limit) for count in job.measure.rank_counts})
    # a node as busy as in training: whole groups of k ranks
    pairs = [(count, count * max(1, node // count)) for count in counts]
    return pairs if (1, 1) in pairs else [(1, 1), *pairs]


def _twins(pools: Sequence[Pool]) -> dict[str, str]:
    """Pools that are another one under a second name: on one machine, pools of one device and rank
    size are the same cores, and two measurements would only differ by noise."""
    first: dict[tuple[str, int, int], str] = {}
    twins = {}
    for pool in pools:
        other = first.setdefault((pool.device, pool.cores_per_rank, pool.rank_limit), pool.name)
        if other != pool.name:
            twins[pool.name] = other
    return twins


@dataclass(frozen=True)
class _Bench:
    """Starts short runs of one job, each in a folder of its own."""

    job: Job
    cluster: Cluster
    model: Model
    run: RunDir
    launcher: Launcher
    working: Task
    depends_on: dict[str, Any]
    again: bool

    def profile(self, pools: Sequence[Pool]) -> Profile:
        """Measure pools, and on several machines the links between them; then fit."""
        one_machine = self.launcher.one_machine
        where = f"{os.uname().nodename} ({self.launcher.name})"
        notes = [f"measured {time.strftime('%Y-%m-%d %H:%M')} on {where}"]
        twins = _twins(pools) if one_machine else {}
        distinct = [pool for pool in pools if pool.name not in twins]
        pairs = [] if one_machine else self._linked(distinct)
        tries = [
            (pool, *ranks) for pool in distinct for ranks in starts(self.job, pool, self.launcher)
        ]
        found: list[Measured] = []
        total = len(tries) + len(pairs)
        for number, (pool, num_ranks, started) in enumerate(tries, 1):
            at_once = f" of {started} at once" if started > num_ranks else ""
            text = f"pool {pool.name} with {fmt.plural(num_ranks, 'rank')}{at_once}"
            self.working.part(text, number, total)
            loads = {table.name: table.work for table in mean_loads(found)} if found else {}
            found.append(self.pool(pool, num_ranks, started, loads, notes))
        for name, twin in twins.items():
            same = [one for one in found if one.pool == twin]
            found += [one.model_copy(update={"pool": name}) for one in same]
            notes.append(f"pool {name} is the same cores as {twin}: measured once")
        links = []
        for number, (here, there) in enumerate(pairs):
            text = f"the link between {here.name} and {there.name}"
            self.working.part(text, len(tries) + number + 1, total)
            links.append(self.link(number, here, there, notes))
        profile = fit_profile(self.cluster, found, notes, one_machine=one_machine)
        return profile if one_machine else with_links(profile, links)

    def pool(
        self,
        pool: Pool,
        num_ranks: int,
        started: int,
        loads: Mapping[str, float],
        notes: list[str],
    ) -> Measured:
        """The times of a pool with so many ranks, of `started` that keep the node busy; tables are
        sharded by `loads`, what earlier measurements say of them."""
        began = time.monotonic()
        key = key_of(self.depends_on, [pool], num_ranks, started)
        what = f"pool {pool.name} with {fmt.plural(num_ranks, 'rank')}"
        before = self._before(key, self.run.measured.name, what, notes)
        if before is not None:
            return Measured.load(before.measured).model_copy(update={"pool": pool.name})
        index = [each.name for each in self.cluster.pools].index(pool.name)
        layers = tuple(layer.name for layer in self.model.layers)
        layout = self._bind(Stage(pool=pool.name, layers=layers, num_ranks=num_ranks), loads=loads)
        stage = Stage(pool=pool.name, layers=layers, num_ranks=started)
        busy = self._bind(stage, cluster=_wider(self.cluster, pool, started))
        folder = self.run.measurement(f"pool{index}-ranks{num_ranks}of{started}").create()
        self._start(folder, layout, busy, PROGRAM, folder.measured, what)
        keep_key(folder, key)
        found = Measured.load(folder.measured)
        log.info(
            "measured %s%s in %s: %s samples/s",
            what,
            f" of {started} that ran at once" if started > num_ranks else "",
            fmt.clock(time.monotonic() - began),
            fmt.rate(self.job.train.batch_size / max(found.step_seconds, 1e-9)),
        )
        return found

    def _linked(self, pools: Sequence[Pool]) -> list[tuple[Pool, Pool]]:
        """Pools that a cut of the model could lie between."""
        return list(combinations(pools, 2)) if len(self.model.layers) > 1 else []

    def _before(self, key: str, output: str, what: str, notes: list[str]) -> RunDir | None:
        """A measurement for the very same, unless the user wants it made again."""
        found = None if self.again else find(self.run, key, output)
        if found is not None:
            where = found.path.parent.parent
            notes.append(f"{what}: measured before, in {where}")
            log.info("%s: measured before, in %s (--measure-again measures it again)", what, where)
        return found

    def link(self, number: int, here: Pool, there: Pool, notes: list[str]) -> MeasuredLinks:
        """Ping and train between two pools, as one small heterogeneous job."""
        what = f"the link between pools {here.name} and {there.name}"
        key = key_of(self.depends_on, [here, there])
        before = self._before(key, self.run.measured_links.name, what, notes)
        if before is not None:
            return MeasuredLinks.load(before.measured_links)
        first, *rest = (layer.name for layer in self.model.layers)
        layout = self._bind(
            Stage(pool=here.name, layers=(first,), num_ranks=1),
            Stage(pool=there.name, layers=tuple(rest), num_ranks=1),
        )
        folder = self.run.measurement(f"links{number}").create()
        self._start(folder, layout, layout, LINKS_PROGRAM, folder.measured_links, what)
        keep_key(folder, key)
        return MeasuredLinks.load(folder.measured_links)

    def _bind(
        self,
        *stages: Stage,
        cluster: Cluster | None = None,
        loads: Mapping[str, float] | None = None,
    ) -> Layout:
        return bind_plan(
            stages,
            model=self.model,
            cluster=cluster or self.cluster,
            job=self.job.name,
            num_partitions=self.job.train.tables.num_partitions,
            table_loads=loads,
        )

    def _start(
        self, run: RunDir, layout: Layout, started: Layout, program: str, output: Path, what: str
    ) -> None:
        """Start ranks that read `layout` and write `output`."""
        request = LaunchRequest(run, layout, self.job, self.cluster, program)
        run.measured_for.unlink(missing_ok=True)
        start_short_run(self.launcher, request, output, f"measuring {what}", started)


def _wider(cluster: Cluster, pool: Pool, num_ranks: int) -> Cluster:
    """The cluster with room for the extra ranks of a measurement, beyond what training may use."""
    wider = pool.model_copy(update={"max_ranks": max(num_ranks, pool.rank_limit)})
    pools = tuple(wider if each.name == pool.name else each for each in cluster.pools)
    return cluster.model_copy(update={"pools": pools})


def _short_job(job: Job) -> Job:
    """The same training, but only a few steps and nothing besides them: no more than these."""
    short = without_extras(job, time_limit_minutes=10.0)
    steps = job.measure.warmup + MOST_BATCHES * job.measure.batches
    return short.model_copy(
        update={"train": short.train.model_copy(update={"steps": steps, "epochs": None})}
    )
