"""Before training: is the world the one that the layout describes, and can it carry the run?

Minutes of queueing and hours of training hang on it, and most of what can be wrong shows itself
otherwise as a hang, or as N separate runs that all "succeed".
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
from pathlib import Path

import numpy as np
import psutil
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
from heterps_hpc.runtime.health.ping import ping_components
from heterps_hpc.runtime.health.preflight_checks import (
    Facts,
    device_index,
    expand_nodes,
    problems,
    world_problem,
)

log = logging.getLogger(__name__)

# Copies of a row's vector that the optimizer keeps beside it (row-wise Adagrad: one number).
_STATE_VECTORS = {"sgd": 0.0, "adagrad_rowwise": 0.0, "adagrad": 1.0, "adam": 2.0}
_ROW_OVERHEAD_BYTES = 32  # key, index entry, counters


def preflight(
    comm: MPI.Intracomm,
    layout: Layout,
    job: Job,
    component: int | None = None,
    run_dir: RunDir | None = None,
) -> list[Link]:
    """Check everything, or raise the same UserError on every rank; the links as measured.

    On a CUDA pool it also gives every rank of a node a device of its own.
    """
    library = " ".join(MPI.Get_library_version().split("\n")[0].strip("\0").split())
    problem = world_problem(comm.size, layout.num_ranks, os.environ, library)
    if problem is not None:
        raise UserError(problem)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise UserError(
            f"{library} was started without MPI_THREAD_MULTIPLE, which Horovod needs; import "
            "mpi4py before other MPI libraries, or use an MPI built with threads"
        )
    facts = comm.allgather(_facts(comm, layout, job, component, library))
    found = problems(facts, layout)
    if found:
        raise UserError("\n".join(found))
    if facts[comm.rank].devices:
        torch.cuda.set_device(device_index(facts, comm.rank))
    links = [link for part in comm.allgather(ping_components(comm, layout)) for link in part]
    for link in links:
        log.info(
            "%s ↔ %s: %.1f µs, %.2f GB/s",
            *link.pools,
            link.latency_seconds * 1e6,
            link.bytes_per_second / 1e9,
        )
    if comm.rank == 0 and run_dir is not None:
        nodes = {fact.node: fact.free_bytes for fact in facts}
        links_told = [link.model_dump(mode="json") for link in links]
        passed = events.PreflightPassed(mpi=library, free_bytes=nodes, links=links_told)
        events.record(run_dir, passed)
    return links


def _facts(
    comm: MPI.Intracomm, layout: Layout, job: Job, component: int | None, library: str
) -> Facts:
    dataset = Dataset.open(job.data.train)
    model = build_model(job.model, dataset.manifest)
    layout.check_model(model)
    needed = shard_bytes(layout, comm.rank, job, model, dataset)
    hot = job.train.tables.hot_bytes
    spilled = 0 if hot is None else max(0, needed - hot)
    number = layout.ranks[comm.rank].component
    on_cuda = layout.components[number].device == "cuda"
    spill_dir = job.train.tables.spill_dir
    return Facts(
        rank=comm.rank,
        component=component,
        node=os.environ.get("SLURMD_NODENAME", platform.node()),
        allocated_nodes=_allocated_nodes(number),
        versions={
            "heterps_hpc": __version__,
            "Python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "MPI": library,
        },
        dataset=dataset.manifest.fingerprint(),
        needed_bytes=needed - spilled,
        free_bytes=psutil.virtual_memory().available,
        spill_bytes=spilled,
        spill_free_bytes=0 if spill_dir is None else _free_disk(spill_dir),
        devices=_devices() if on_cuda else (),
    )


def _devices() -> tuple[str, ...]:
    count = torch.cuda.device_count()
    return tuple(str(torch.cuda.get_device_properties(index).uuid) for index in range(count))


def shard_bytes(layout: Layout, rank: int, job: Job, model: Model, dataset: Dataset) -> int:
    """About how many bytes the rows of a rank's shards will fill when all keys have been seen."""
    width = 8 if job.train.precision == "float64" else 4
    state = _STATE_VECTORS[job.train.sparse.optimizer]
    total = 0.0
    for table, held in layout.ranks[rank].partitions().items():
        row = model.table(table).dim * width * (1 + state) + _ROW_OVERHEAD_BYTES
        share = len(held) / layout.num_partitions
        total += _num_keys(table, job, model, dataset) * share * row
    return int(total)


def _num_keys(table: str, job: Job, model: Model, dataset: Dataset) -> float:
    """Distinct keys that training can show to a table; drawn slots show those of their source."""
    slots = {lookup.slot for lookup in model.lookups if lookup.table == table}
    sources = {
        slot if (negative := model.negative(slot)) is None else negative.source for slot in slots
    }
    num_keys = 0.0
    for source in sources:
        slot = dataset.manifest.slot(source)
        seen = float("inf")
        if job.train.steps is not None:
            seen = job.train.steps * job.train.batch_size * max(1.0, slot.mean_keys)
        num_keys += min(slot.cardinality, seen)
    return num_keys


def _allocated_nodes(component: int) -> tuple[str, ...]:
    """Nodes of a component as Slurm allocated them; empty when we are not under Slurm."""
    group = os.environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{component}")
    plain = os.environ.get("SLURM_JOB_NODELIST") if "SLURM_HET_SIZE" not in os.environ else None
    return expand_nodes(group or plain or "")


def _free_disk(folder: Path) -> int:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free
