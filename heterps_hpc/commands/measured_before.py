"""Not again: a measurement is used again while all that it depends on is the same.

What a measurement depended on is kept next to it as one hash. It is looked for in this run and in
the runs next to it (`runs/*`), so that there is no hidden cache: deleting a run deletes its
measurements, and the profile names the run that they come from.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import heterps_hpc
from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.cluster import Cluster, Pool
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.launch.launcher import Launcher
from heterps_hpc.model import Model
from heterps_hpc.rundir import RunDir

# what does not change how long a batch takes on a pool
_OTHER_KEYS = {"name", "cluster", "goal", "plan", "checkpoint", "watch", "launch"}
_OTHER_POOL_KEYS = {"name", "kind", "price_per_hour", "billing", "max_ranks", "max_nodes"}


def dependencies(job: Job, model: Model, data: Dataset, launcher: Launcher) -> dict[str, Any]:
    """What every measurement of a job depends on: the work, the code and the machine."""
    work = job.model_dump(mode="json", exclude=_OTHER_KEYS)
    work["data"] = {"train": data.manifest.fingerprint(), "read_ahead": job.data.read_ahead}
    own_model = job.model.file
    return {
        "job": work,
        "model": model.fingerprint(),
        "model_file": None if own_model is None else _hash(own_model.read_bytes()),
        "code": code_hash(Path(heterps_hpc.__file__).parent),
        "launcher": launcher.name,
        "machine": _this_machine() if launcher.one_machine else None,
    }


def key_of(depends_on: dict[str, Any], pools: list[Pool], *ranks: int) -> str:
    """One hash for one measurement: of these pools, with so many ranks."""
    listed = [pool.model_dump(mode="json", exclude=_OTHER_POOL_KEYS) for pool in pools]
    text = json.dumps({**depends_on, "pools": listed, "ranks": ranks}, sort_keys=True, default=str)
    return _hash(text.encode())


def keep_key(folder: RunDir, key: str) -> None:
    """Note what a measurement that has just been made depended on."""
    write_atomically(folder.measured_for, json.dumps({"key": key, "time": time.time()}) + "\n")


def find(run: RunDir, key: str, output: str) -> RunDir | None:
    """The newest measurement with that key that has its output, of this run or one next to it."""
    found: list[tuple[float, RunDir]] = []
    pattern = f"*/measure/*/{run.measured_for.name}"
    for path in run.path.parent.glob(pattern):
        try:
            noted = json.loads(path.read_bytes())
            if noted["key"] == key and (path.parent / output).is_file():
                found.append((float(noted["time"]), RunDir(path.parent)))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # of another version, or being written
    return max(found, key=lambda each: each[0])[1] if found else None


def profile_next_to(run: RunDir, job: Job, cluster: Cluster) -> Path | None:
    """The newest profile of a run next to this one, of the same work on the same pools."""
    wanted = _work(job, cluster)
    for path in sorted(
        run.path.parent.glob(f"*/{run.profile.name}"),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    ):
        other = RunDir(path.parent)
        try:
            if _work(Job.parse_saved(other.job), Cluster.load(other.cluster)) == wanted:
                return path
        except UserError:
            continue  # of another version, or being written
    return None


def _work(job: Job, cluster: Cluster) -> tuple[object, ...]:
    pools = [pool.model_dump(exclude=_OTHER_POOL_KEYS - {"name"}) for pool in cluster.pools]
    kept = job.model_dump(exclude={*_OTHER_KEYS, "measure"})
    return kept | {"train": {**kept["train"], "epochs": None, "steps": None}}, pools


def code_hash(package: Path) -> str:
    """A hash of the package's sources and built parts; tests and pages do not count."""
    digest = hashlib.sha256()
    files = [path for suffix in ("*.py", "*.so") for path in package.rglob(suffix)]
    for path in sorted(files):
        digest.update(str(path.relative_to(package)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _this_machine() -> list[str]:
    uname = os.uname()
    return [uname.nodename, uname.machine, str(len(os.sched_getaffinity(0)))]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
