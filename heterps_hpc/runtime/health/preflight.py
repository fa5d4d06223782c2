"""Before training: is the world the one that the layout describes, and can it carry the run?

Minutes of queueing and hours of training hang on it, and most of what can be wrong shows itself
otherwise as a hang, or as N separate runs that all "succeed".
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI

from heterps_hpc import __version__, events
from heterps_hpc.cluster import Link
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Layout
from heterps_hpc.model import Model
from heterps_hpc.models import build_model
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.device import accelerators, node_name, visible_devices
from heterps_hpc.runtime.health.free_memory import free_memory
from heterps_hpc.runtime.health.ping import ping_components
from heterps_hpc.runtime.health.preflight_checks import (
    RankInfo,
    expand_nodes,
    problems,
    world_problem,
)
from heterps_hpc.runtime.shared_memory import unlink_mpi_memory
from heterps_hpc.table_size import snapshot_share, table_bytes

log = logging.getLogger(__name__)


def check_world(
    comm: MPI.Intracomm, layout: Layout, component: int | None = None, *, reducer: str = "mpi"
) -> RankInfo:
    """The cheap part, for every rank program: one world of the right size, each rank in its place,
    the same software everywhere. Raises the same UserError on every rank.

    `reducer` is the job's: only ranks that may sum with Horovod must have the same of it.
    """
    library = _mpi_library()
    problem = world_problem(comm.size, layout.num_ranks, os.environ, library)
    if problem is not None:
        raise UserError(problem)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise UserError(
            f"{library} was started without MPI_THREAD_MULTIPLE, which Horovod needs; import "
            "mpi4py before other MPI libraries, or use an MPI built with threads"
        )
    info = _rank_info(comm.rank, layout, component)
    if reducer in ("auto", "horovod") and layout.reduces(comm.rank):
        info = replace(info, versions={**info.versions, "Horovod": _installed("horovod")})
    _gather(comm, layout, info)
    unlink_mpi_memory()
    return info


def preflight(
    comm: MPI.Intracomm, layout: Layout, job: Job, info: RankInfo, run_dir: RunDir | None = None
) -> list[Link]:
    """What training needs beyond `check_world`, whose finding of this rank is `info`: the same
    data everywhere, memory, disk and a network; the links as measured."""
    infos = _gather(comm, layout, _with_needs(info, layout, job))
    devices = {each.node: each.accelerators for each in infos if each.devices}
    for node, found in devices.items():
        log.info("%s: %s", node, found)
    links = [link for part in comm.allgather(ping_components(comm, layout)) for link in part]
    for link in links:
        log.info(
            "%s ↔ %s: %.1f µs, %.2f GB/s",
            *link.pools,
            link.latency_seconds * 1e6,
            link.bytes_per_second / 1e9,
        )
    if comm.rank == 0 and run_dir is not None:
        nodes = {each.node: each.free_bytes for each in infos}
        shown = [link.model_dump(mode="json") for link in links]
        passed = events.PreflightPassed(
            mpi=_mpi_library(), free_bytes=nodes, links=shown, devices=devices
        )
        events.record_if_possible(run_dir, passed)
    return links


def _gather(comm: MPI.Intracomm, layout: Layout, info: RankInfo) -> list[RankInfo]:
    """What all ranks know of themselves, if nothing is wrong with it."""
    infos = comm.allgather(info)
    found = problems(infos, layout)
    if found:
        raise UserError("\n".join(found))
    return infos


def _rank_info(rank: int, layout: Layout, component: int | None) -> RankInfo:
    number = layout.ranks[rank].component
    return RankInfo(
        rank=rank,
        component=component,
        node=node_name(),
        allocated_nodes=_allocated_nodes(number),
        versions={
            "heterps_hpc": __version__,
            "Python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "MPI": _mpi_library(),
        },
        devices=visible_devices(layout.components[number].device),
        accelerators=accelerators(),
    )


def _with_needs(info: RankInfo, layout: Layout, job: Job) -> RankInfo:
    """The same, with the data that the rank sees and the memory and disk that it will need."""
    dataset = Dataset.open(job.data.train)
    model = build_model(job.model, dataset.manifest.learning(job.data.label))
    layout.check_model(model)
    rows = shard_bytes(layout, info.rank, job, model, dataset)
    hot = job.train.tables.hot_bytes
    in_memory = rows if hot is None else min(rows, hot)
    spill_dir = job.train.tables.spill_dir
    return replace(
        info,
        dataset=dataset.manifest.fingerprint(),
        needed_bytes=int(in_memory * (1 + snapshot_share(job))),
        free_bytes=free_memory(),
        spill_bytes=int(rows - in_memory),
        spill_free_bytes=0 if spill_dir is None else _free_disk(spill_dir),
    )


def _mpi_library() -> str:
    return " ".join(MPI.Get_library_version().split("\n")[0].strip("\0").split())


def _installed(package: str) -> str:
    """The version of a package, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def shard_bytes(layout: Layout, rank: int, job: Job, model: Model, dataset: Dataset) -> float:
    """About how many bytes a rank's shards will fill when all keys have been seen."""
    return sum(
        table_bytes(model, table, job.train, dataset.manifest.slots)
        * len(held)
        / layout.num_partitions
        for table, held in layout.ranks[rank].partitions().items()
    )


def _allocated_nodes(component: int) -> tuple[str, ...]:
    """Nodes of a component as Slurm allocated them; empty when we are not under Slurm."""
    group = os.environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{component}")
    plain = os.environ.get("SLURM_JOB_NODELIST") if "SLURM_HET_SIZE" not in os.environ else None
    return expand_nodes(group or plain or "")


def _free_disk(folder: Path) -> int:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free
