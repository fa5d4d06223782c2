"""`heterps measure`: a short training run of each pool at a few numbers of ranks, then the fit."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from heterps_hpc import events
from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.commands.prepare import model_of
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import StartFailed
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.failure import explain
from heterps_hpc.launch.launcher import Launcher, LaunchRequest, Listener
from heterps_hpc.launch.stop_requests import StopRequested
from heterps_hpc.layout import Layout, Stage
from heterps_hpc.model import Model
from heterps_hpc.profile import Profile
from heterps_hpc.profiling.fit import fit_profile, with_links
from heterps_hpc.profiling.measurement import Measured, MeasuredLinks
from heterps_hpc.rundir import RunDir
from heterps_hpc.sharding import bind_plan

log = logging.getLogger(__name__)

PROGRAM = "heterps_hpc.runtime.measure.program"
LINKS_PROGRAM = "heterps_hpc.runtime.measure.links"


def measure(job: Job, cluster: Cluster, run: RunDir, launcher: Launcher) -> Profile:
    """Times of every layer on every pool; pools with a data sheet are estimated from it."""
    data = Dataset.open(job.data.train)
    model = model_of(job, data)
    bench = _Bench(_short_job(job), cluster, model, run, launcher)
    where = f"{os.uname().nodename} ({launcher.name})"
    notes = [f"measured {time.strftime('%Y-%m-%d %H:%M')} on {where}"]
    found: list[Measured] = []
    for pool in cluster.pools:
        if pool.data_sheet is not None:
            continue
        twin = _measured_before(pool, found, cluster) if launcher.one_machine else None
        if twin is None:
            found += [bench.pool(pool, *ranks) for ranks in starts(job, pool, launcher)]
            continue
        same = [one for one in found if one.pool == twin]
        found += [one.model_copy(update={"pool": pool.name}) for one in same]
        notes.append(f"pool {pool.name} is the same cores as {twin}: measured once")
    if found:
        profile = fit_profile(cluster, found, notes, one_machine=launcher.one_machine)
    else:  # every pool is described, not measured
        from heterps_hpc.runtime.measure.unmeasured import unmeasured_profile

        profile = unmeasured_profile(job, model, data)
    if not launcher.one_machine:
        measured = [pool for pool in cluster.pools if pool.data_sheet is None]
        profile = with_links(profile, bench.links_between(measured))
    sheets = [pool for pool in cluster.pools if pool.data_sheet is not None]
    if sheets:
        from heterps_hpc.profiling.data_sheets import profile_from_sheets

        profile = profile.merged(profile_from_sheets(profile, sheets))
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


def _measured_before(pool: Pool, found: Sequence[Measured], cluster: Cluster) -> str | None:
    """A pool that is this one under another name: on one machine, pools of one device and rank
    size are the same cores, and two measurements would only differ by noise."""
    for one in found:
        other = cluster.pool(one.pool)
        same = (other.device, other.cores_per_rank, other.rank_limit)
        if same == (pool.device, pool.cores_per_rank, pool.rank_limit):
            return other.name
    return None


@dataclass(frozen=True)
class _Bench:
    """Starts short runs of one job, each in a folder of its own."""

    job: Job
    cluster: Cluster
    model: Model
    run: RunDir
    launcher: Launcher

    def pool(self, pool: Pool, num_ranks: int, started: int) -> Measured:
        """The times of a pool with so many ranks, of `started` that keep the node busy."""
        began = time.monotonic()
        index = [each.name for each in self.cluster.pools].index(pool.name)
        layers = tuple(layer.name for layer in self.model.layers)
        layout = self._bind(Stage(pool=pool.name, layers=layers, num_ranks=num_ranks))
        stage = Stage(pool=pool.name, layers=layers, num_ranks=started)
        busy = self._bind(stage, cluster=_wider(self.cluster, pool, started))
        folder = self.run.measurement(f"pool{index}-ranks{num_ranks}of{started}").create()
        what = f"pool {pool.name!r} with {num_ranks} ranks"
        self._start(folder, layout, busy, PROGRAM, folder.measured, what)
        found = Measured.load(folder.measured)
        log.info(
            "measured pool %s with %d rank%s%s in %.0f s: %.0f samples/s",
            pool.name,
            num_ranks,
            "" if num_ranks == 1 else "s",
            f" of {started} that ran at once" if started > num_ranks else "",
            time.monotonic() - began,
            self.job.train.batch_size / max(found.step_seconds, 1e-9),
        )
        return found

    def links_between(self, pools: Sequence[Pool]) -> list[MeasuredLinks]:
        """Ping and train between every two pools, as one small heterogeneous job each."""
        if len(self.model.layers) < 2:
            return []  # nothing can be cut, so nothing will travel
        links: list[MeasuredLinks] = []
        first, *rest = (layer.name for layer in self.model.layers)
        for number, (here, there) in enumerate(combinations(pools, 2)):
            layout = self._bind(
                Stage(pool=here.name, layers=(first,), num_ranks=1),
                Stage(pool=there.name, layers=tuple(rest), num_ranks=1),
            )
            folder = self.run.measurement(f"links{number}").create()
            what = f"the link between pools {here.name!r} and {there.name!r}"
            self._start(folder, layout, layout, LINKS_PROGRAM, folder.measured_links, what)
            links.append(MeasuredLinks.load(folder.measured_links))
        return links

    def _bind(self, *stages: Stage, cluster: Cluster | None = None) -> Layout:
        return bind_plan(
            stages,
            model=self.model,
            cluster=cluster or self.cluster,
            job=self.job.name,
            num_partitions=self.job.train.tables.num_partitions,
        )

    def _start(
        self, run: RunDir, layout: Layout, started: Layout, program: str, output: Path, what: str
    ) -> None:
        """Start ranks that read `layout` and write `output`."""
        with run.hold():
            self.job.save(run.job)
            self.cluster.save(run.cluster)
            layout.save(run.layout)
            output.unlink(missing_ok=True)
            events.record(run, events.Launched(on=self.launcher.name, num_ranks=started.num_ranks))
            request = LaunchRequest(run, started, self.job, self.cluster, program)
            code = self.launcher.start(request, Listener(line=log.info))
        stop = events.read(run).newest_start.last(events.StopWanted)
        if stop is not None:
            raise StopRequested(f"stopped ({stop.why}) while measuring {what}")
        if code != ExitCode.DONE or not output.exists():
            reason = (explain(run, code) or "nothing was written").splitlines()[0]
            code = ExitCode.RANK_FAILED if code == ExitCode.DONE else code
            raise StartFailed(f"measuring {what} failed: {reason}; see {run.logs}", code)


def _wider(cluster: Cluster, pool: Pool, num_ranks: int) -> Cluster:
    """The cluster with capacity for ballast ranks, which training itself would not be given."""
    wider = pool.model_copy(update={"max_ranks": max(num_ranks, pool.rank_limit)})
    pools = tuple(wider if each.name == pool.name else each for each in cluster.pools)
    return cluster.model_copy(update={"pools": pools})


def _short_job(job: Job) -> Job:
    """The same training, but only a few steps and nothing besides them."""
    train = job.train.model_copy(
        update={
            "steps": job.measure.warmup + job.measure.batches,
            "metrics_every": 10**9,
            "evaluate_every": None,
            "evaluate_at_end": False,
            "init_from": None,
        }
    )
    launch = job.launch.model_copy(update={"max_restarts": 0, "time_limit_minutes": 10.0})
    data = job.data.model_copy(update={"test": None})
    return job.model_copy(update={"train": train, "launch": launch, "data": data})
