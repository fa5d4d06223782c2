"""`heterps measure`: a short training run of each pool at a few numbers of ranks, then the fit."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from itertools import combinations

from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.commands.prepare import model_of
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.layout import Layout, Stage
from heterps_hpc.model import Model
from heterps_hpc.profile import Profile
from heterps_hpc.profiling.fit import fit_profile, with_message_costs
from heterps_hpc.profiling.measurement import Measured, MeasuredLinks
from heterps_hpc.rundir import RunDir
from heterps_hpc.sharding import bind_plan

log = logging.getLogger(__name__)

PROGRAM = "heterps_hpc.runtime.measure.program"
LINKS_PROGRAM = "heterps_hpc.runtime.measure.links"


def measure(job: Job, cluster: Cluster, run_dir: RunDir, on: str = "local") -> Profile:
    """Times of every layer on every pool; pools with a data sheet are estimated from it."""
    model = model_of(job, Dataset.open(job.data.train))
    runs: list[Measured] = []
    notes = [f"measured {time.strftime('%Y-%m-%d %H:%M')} on {os.uname().nodename} ({on})"]
    for pool in cluster.pools:
        if pool.data_sheet is not None:
            continue
        twin = next(
            (run for run in runs if on == "local" and _same_cores(cluster, run, pool)), None
        )
        if twin is not None:
            twins = [run for run in runs if run.pool == twin.pool]
            runs += [run.model_copy(update={"pool": pool.name}) for run in twins]
            notes.append(f"pool {pool.name} is the same cores as {twin.pool}: measured once")
            continue
        for num_ranks, started in starts(job, pool, on):
            began = time.monotonic()
            runs.append(_measure_pool(job, cluster, model, pool, num_ranks, started, run_dir, on))
            log.info(
                "measured pool %s with %d rank%s%s in %.0f s: %.0f samples/s",
                pool.name,
                num_ranks,
                "" if num_ranks == 1 else "s",
                f" of {started} busy ones" if started > num_ranks else "",
                time.monotonic() - began,
                job.train.batch_size / max(runs[-1].step_seconds, 1e-9),
            )
    sheets = [pool for pool in cluster.pools if pool.data_sheet is not None]
    if not runs:
        raise UserError(
            "every pool has a `data_sheet`, so nothing is left to measure; measure at least one "
            "pool, or plan from sheets alone with `heterps plan --profile`"
        )
    profile = fit_profile(cluster, runs, notes, one_machine=on == "local")
    if on == "slurm":
        measured = [pool for pool in cluster.pools if pool.data_sheet is None]
        between = _links_between(job, cluster, model, measured, run_dir)
        profile = with_message_costs(profile, between)
    if sheets:
        from heterps_hpc.profiling.data_sheets import profile_from_sheets

        profile = profile.merged(profile_from_sheets(profile, sheets))
    return profile


def _same_cores(cluster: Cluster, run: Measured, pool: Pool) -> bool:
    """Whether a pool was measured already under another name: on one machine pools of one device
    and rank size are the same cores, and two measurements would only differ by noise."""
    other = cluster.pool(run.pool)
    return (other.device, other.cores_per_rank, other.rank_limit) == (
        pool.device,
        pool.cores_per_rank,
        pool.rank_limit,
    )


def rank_counts(job: Job, pool: Pool, on: str) -> list[int]:
    """The numbers of ranks to try: the job's, as far as the pool (and this machine) allows."""
    most = pool.rank_limit
    if on == "local":
        most = min(most, max(1, _local_cores() // pool.cores_per_rank))
    return sorted({min(count, most) for count in job.measure.rank_counts})


def starts(job: Job, pool: Pool, on: str) -> list[tuple[int, int]]:
    """(k, ranks to start): on a full node for every k, and one rank alone if that is another case.

    Ranks of one node share memory bandwidth and clock rates, so a rank that has a node for itself
    is faster than its figures on a full node say.
    """
    counts = [
        (num_ranks, full_node(pool, num_ranks, on)) for num_ranks in rank_counts(job, pool, on)
    ]
    return counts if (1, 1) in counts else [(1, 1), *counts]


def _measure_pool(
    job: Job,
    cluster: Cluster,
    model: Model,
    pool: Pool,
    num_ranks: int,
    started: int,
    run_dir: RunDir,
    on: str,
) -> Measured:
    index = [each.name for each in cluster.pools].index(pool.name)
    name = f"pool{index}-ranks{num_ranks}of{started}"
    directory = RunDir(run_dir.path / "measure" / name).create()
    short = _short_job(job)
    _save(directory, short, cluster, _one_stage(short, cluster, model, pool, num_ranks))
    output = directory.path / "measured.json"
    output.unlink(missing_ok=True)
    layout = _one_stage(short, _roomy(cluster, pool, started), model, pool, started)
    code = _start(short, cluster, layout, directory, on, PROGRAM)
    if code != ExitCode.DONE or not output.exists():
        raise UserError(
            f"measuring pool {pool.name!r} with {num_ranks} ranks failed (exit code {int(code)}); "
            f"see {directory.logs} and the lines above"
        )
    return Measured.load(output)


def _links_between(
    job: Job, cluster: Cluster, model: Model, pools: Sequence[Pool], run_dir: RunDir
) -> list[MeasuredLinks]:
    """Ping and train between every two pools, as one small heterogeneous job each."""
    if len(model.layers) < 2:
        return []  # nothing can be cut, so nothing will travel
    links: list[MeasuredLinks] = []
    first, *rest = (layer.name for layer in model.layers)
    for number, (here, there) in enumerate(combinations(pools, 2)):
        stages = (
            Stage(pool=here.name, layers=(first,), num_ranks=1),
            Stage(pool=there.name, layers=tuple(rest), num_ranks=1),
        )
        directory = RunDir(run_dir.path / "measure" / f"links{number}").create()
        layout = _bind(job, cluster, model, stages)
        _save(directory, _short_job(job), cluster, layout)
        code = _start(_short_job(job), cluster, layout, directory, "slurm", LINKS_PROGRAM)
        output = directory.path / "links.json"
        if code != ExitCode.DONE or not output.exists():
            raise UserError(
                f"measuring the link between pools {here.name!r} and {there.name!r} failed (exit "
                f"code {int(code)}); see {directory.logs} and the lines above"
            )
        links.append(MeasuredLinks.load(output))
    return links


def full_node(pool: Pool, num_ranks: int, on: str) -> int:
    """Ranks to start so that a node is as busy as in training: whole groups of k ranks."""
    room = pool.ranks_per_node
    if on == "local":
        room = min(room, max(1, _local_cores() // pool.cores_per_rank))
    return num_ranks * max(1, room // num_ranks)


def _save(directory: RunDir, job: Job, cluster: Cluster, layout: Layout) -> None:
    job.save(directory.job)
    cluster.save(directory.cluster)
    layout.save(directory.layout)


def _start(
    job: Job, cluster: Cluster, layout: Layout, directory: RunDir, on: str, program: str
) -> ExitCode:
    if on == "slurm":
        from heterps_hpc.launch import slurm

        slurm.submit(directory.path, layout, cluster, job, program=program)
        return slurm.wait(directory.path)
    from heterps_hpc.launch import local

    return local.run(directory.path, layout, job, program=program, on_line=log.info)


def _one_stage(job: Job, cluster: Cluster, model: Model, pool: Pool, num_ranks: int) -> Layout:
    layers = tuple(layer.name for layer in model.layers)
    stage = Stage(pool=pool.name, layers=layers, num_ranks=num_ranks)
    return _bind(job, cluster, model, (stage,))


def _bind(job: Job, cluster: Cluster, model: Model, stages: tuple[Stage, ...]) -> Layout:
    return bind_plan(
        stages,
        model=model,
        cluster=cluster,
        job=job.name,
        num_partitions=job.train.tables.num_partitions,
    )


def _roomy(cluster: Cluster, pool: Pool, num_ranks: int) -> Cluster:
    """The cluster with room for ballast ranks, which training itself would not be given."""
    wider = pool.model_copy(update={"max_ranks": max(num_ranks, pool.rank_limit)})
    pools = tuple(wider if each.name == pool.name else each for each in cluster.pools)
    return cluster.model_copy(update={"pools": pools})


def _short_job(job: Job) -> Job:
    """The same training, but only a few steps and nothing beside them."""
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


def _local_cores() -> int:
    return len(os.sched_getaffinity(0))
