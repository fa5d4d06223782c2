"""Mutates every field of a run's input files.

    python -m tests.faults.mutate_values FOLDER FIRST COUNT

Each mutation of a job, a cluster, a layout, a profile, a dataset manifest or a checkpoint manifest
is either accepted, and then survives everything that is done with it before ranks start, or is
refused by one UserError of a few short lines; in 5 seconds of the processor, which others may keep
busy, and 500 MB. Runs as a process of its own, so that memory is limited and a crash is seen.
Prints how many were refused, by file. What was accepted stays in FOLDER/accepted, for
tests.faults.run_accepted.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from heterps_hpc.checkpoint import Checkpoint
from heterps_hpc.checkpoint.manifest import Manifest as CheckpointManifest
from heterps_hpc.checkpoint.verify import verify
from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset, Order
from heterps_hpc.dataset.manifest import DatasetManifest
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Layout
from heterps_hpc.layout_checks import check_cluster
from heterps_hpc.models import build_model
from heterps_hpc.profile import Profile
from tests.checkpoint.made import make_checkpoint
from tests.equivalence import cases
from tests.equivalence.cases import Case, make_job, make_layout, make_model
from tests.equivalence.click_log import write_click_log

CASE = Case("ctrdnn", "2+1", 2, 1, "float32", "evaluate")
# no larger than the world of tests.faults.run_accepted, which trains what is planned for it
CLUSTER = Cluster(
    pools=tuple(
        pool.model_copy(update={"max_ranks": num_ranks})
        for pool, num_ranks in zip(cases.CLUSTER.pools, (2, 1), strict=True)
    )
)
MAX_SECONDS = 5
MAX_SECONDS_WAITING = 60
SPARE_BYTES = 500 << 20
MAX_MESSAGE = 4000

HOSTILE: list[Any] = [
    -1, 0, 1, 2, 2**31, 2**40, 2**63, 2**64, 10**30, 10**400, -(10**30), 0.5, -0.5, 1e30, 1e308,
    -1e308, float("nan"), float("inf"), None, True, False, "", " ", "x", "\0", "\x1b[31m", "a/b",
    "../../etc/passwd", "~nouser/x", "nan", "1e400", "x" * 5000, "é" * 300, "\ud800", [], {},
    [[[]]], [None], [1] * 300, {"a": {"b": 1}}, {"": 0}, [0, 0], [1, 2], [2, 2], [1.5, 1.5], "auto",
    "rl", "cpu", "gpu", "float64", "2024-13-45", {"kind": "step"}, {"name": "ctrdnn"},
    {"file": "/nowhere.py"},
]  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field of a structure, the inner ones too."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def mutate(data: Any, draw: random.Random) -> tuple[Any, str]:
    """Another structure, and what was changed in it."""
    changed = copy.deepcopy(data)
    for _ in range(draw.choice([1, 1, 1, 2])):
        where = draw.choice(list(places(changed)))
        parent = changed
        for key in where[:-1]:
            parent = parent[key]
        last = where[-1]
        action = draw.randrange(8)
        if action == 0:
            del parent[last]
            return changed, f"without {where}"
        if action == 1 and isinstance(parent, dict):
            parent[f"{last}_"] = parent[last]
            return changed, f"one more key in {where}"
        if action == 2 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[last]))
            return changed, f"{where} twice"
        if action == 3 and isinstance(parent[last], int | float):
            factor = draw.choice([-1, 2, 3, 1000, 2**40])
            parent[last] = parent[last] * factor + draw.choice([0, 1, -1])
        else:
            parent[last] = copy.deepcopy(draw.choice(HOSTILE))
    return changed, f"{where} = {str(parent[last])[:60]!r}"


class Inputs:
    """Sound files of one small run, and what is done with each of them before ranks start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.distinct: set[tuple[str, str]] = set()
        (folder / "accepted").mkdir()
        write_click_log(folder / "data" / "plain")
        write_click_log(folder / "data" / "test", seed=8)
        self.data = Dataset.open(folder / "data" / "plain")
        job = make_job(CASE, folder / "data")
        self.job = job
        self.model = make_model(job, self.data.manifest)
        self.layout = make_layout(CASE, job, self.model)
        self.checkpoint = make_checkpoint(folder / "checkpoint", num_rows=4).path
        self.sound: dict[str, Any] = {
            "job": json.loads(job.to_json()),
            "cluster": json.loads(CLUSTER.to_json()),
            "layout": json.loads(self.layout.to_json()),
            "profile": json.loads(self.profile().to_json()),
            "dataset": json.loads(self.data.manifest.to_json()),
            "checkpoint": json.loads((self.checkpoint / "manifest.json").read_text()),
        }
        self.use: dict[str, Callable[[Path], None]] = {
            "job": self.use_job,
            "cluster": self.use_cluster,
            "layout": self.use_layout,
            "profile": self.use_profile,
            "dataset": self.use_dataset,
            "checkpoint": self.use_checkpoint,
        }

    def profile(self) -> Profile:
        """Made-up times of the model's layers on the two pools."""
        names = [layer.name for layer in self.model.layers]
        return Profile.parse(
            {
                "model": self.model.name,
                "model_fingerprint": self.model.fingerprint(),
                "batch_size": 40,
                "layers": [{"name": name, "kind": "fc", "flops": 10.0} for name in names],
                "timings": [
                    {"layer": name, "pool": pool.name, "compute_seconds": 0.01}
                    for name in names
                    for pool in CLUSTER.pools
                ],
                "tensors": [
                    {"name": "x", "writer": names[0], "readers": names[1:], "bytes_per_sample": 8}
                ],
                "tables": [{"name": table.name, "work": 1.0} for table in self.model.tables],
            },
            "made up",
        )

    def use_job(self, path: Path) -> None:
        """Load, then build its model and the order of its data."""
        job = Job.load(path)
        _repeat(Job, path)
        manifest = self.data.manifest
        build_model(job.model, manifest).data_slots()
        Order(self.data, job.train.batch_size, job.train.seed)

    def use_cluster(self, path: Path) -> None:
        """Load, then count and price ranks, and hold the layout to it."""
        cluster = Cluster.load(path)
        _repeat(Cluster, path)
        for pool in cluster.pools:
            for count in (1, pool.rank_limit):
                assert pool.num_nodes(count) >= 1
                assert pool.hourly_price(count) > 0
            assert pool.memory_per_rank_bytes >= 0
        check_cluster(self.layout, cluster)

    def use_layout(self, path: Path) -> None:
        """Load, hold to the model and the cluster; every partition is then held once."""
        layout = Layout.load(path)
        _repeat(Layout, path)
        layout.check_model(self.model)
        check_cluster(layout, CLUSTER)
        held = Counter(
            (table, partition)
            for entry in layout.ranks
            for table, partitions in entry.partitions().items()
            for partition in partitions
        )
        tables = {table.name for table in self.model.tables}
        assert set(held.values()) == {1}
        assert set(held) == {(t, p) for t in tables for p in range(layout.num_partitions)}
        for stage in range(len(layout.stages)):
            assert layout.stage_ranks(stage)

    def use_profile(self, path: Path) -> None:
        """Load and look up what a planner does."""
        profile = Profile.load(path)
        _repeat(Profile, path)
        profile.check_model(self.model)
        for pool in CLUSTER.pools:
            profile.pool(pool.name)
            for layer in self.model.layers:
                profile.timing(layer.name, pool.name)

    def use_dataset(self, path: Path) -> None:
        """Open the shards of the manifest, as far as a planner does."""
        manifest = DatasetManifest.load(path)
        dataset = Dataset(self.data.path, manifest)
        dataset.check("sizes")
        Order(dataset, 40)
        manifest.fingerprint()

    def use_checkpoint(self, path: Path) -> None:
        """Hold the shards of the manifest to it, as `heterps checkpoint verify` does."""
        manifest = CheckpointManifest.load(path)
        _repeat(CheckpointManifest, path)
        problems = verify(Checkpoint(self.checkpoint, manifest)).problems
        if problems:
            raise UserError(problems[0])


def _filled(job: dict[str, Any], *, forgets: bool) -> dict[str, Any]:
    """A job in which every optional part is there to be mutated, or all that the oracle knows."""
    job = copy.deepcopy(job)
    job["data"]["synthetic"] = {"train_rows": 100, "seed": 3}
    job["train"]["dense"]["schedule"] = {"kind": "cosine", "warmup_steps": 3, "total_steps": 9}
    if forgets:
        job["train"]["tables"] |= {"admit_after": 2, "sketch_bytes": 4096, "counters": True}
    return job


def _repeat(kind: Any, path: Path) -> None:
    """What is accepted can be written and read again, unchanged."""
    value = kind.load(path)
    copy_path = path.with_name("again.json")
    value.save(copy_path)
    again = kind.parse_saved(copy_path) if kind is Job else kind.load(copy_path)
    assert again == value


def try_one(inputs: Inputs, what: str, seed: int) -> bool:
    """Whether a mutation is refused; exits where it ends otherwise than it may."""
    draw = random.Random(f"{what} {seed}")
    sound = inputs.sound[what]
    if what == "job" and draw.random() < 0.5:
        sound = _filled(sound, forgets=draw.random() < 0.3)
    data, changed = mutate(sound, draw)
    suffix = ".yaml" if what in ("job", "cluster") and draw.random() < 0.5 else ".json"
    path = inputs.folder / f"{what}{suffix}"
    try:
        text = yaml.safe_dump(data) if suffix == ".yaml" else json.dumps(data)
    except ValueError:  # a number of too many digits for the writer, not for the reader
        return True
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    inputs.distinct.add((what, json.dumps(data, sort_keys=True)))
    started = time.process_time()
    signal.alarm(MAX_SECONDS_WAITING)
    try:
        inputs.use[what](path)
        shutil.copy(path, inputs.folder / "accepted" / f"{what}-{seed}{suffix}")
        refused = False
    except UserError as error:
        refused = True
        if not str(error) or len(str(error)) > MAX_MESSAGE:
            sys.exit(f"{what} {seed}, {changed}: a message of {len(str(error))} characters")
    except MemoryError:
        sys.exit(f"{what} {seed}, {changed}: more than {SPARE_BYTES >> 20} MB")
    except BaseException as error:
        traceback.print_exc()
        sys.exit(f"{what} {seed}, {changed}: {type(error).__name__} is not an error for users")
    finally:
        signal.alarm(0)
    if time.process_time() - started > MAX_SECONDS:
        sys.exit(f"{what} {seed}, {changed}: took {time.process_time() - started:.1f} s")
    return refused


def main(folder: Path, first: int, count: int) -> None:
    """`count` mutations, the kinds of files in turn."""
    inputs = Inputs(folder)
    kinds = list(inputs.sound)
    for what in kinds:  # unchanged, each is accepted
        path = folder / "accepted" / f"{what}-sound.json"
        path.write_text(json.dumps(inputs.sound[what]))
        inputs.use[what](path)
        (folder / "accepted" / "again.json").unlink(missing_ok=True)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, used + SPARE_BYTES))
    refused = Counter(
        kinds[seed % len(kinds)]
        for seed in range(first, first + count)
        if try_one(inputs, kinds[seed % len(kinds)], seed)
    )
    print(json.dumps({"distinct": len(inputs.distinct), "refused": refused}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
