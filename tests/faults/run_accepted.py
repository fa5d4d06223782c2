"""Runs what mutated inputs were accepted as, on three ranks, and holds it to the oracle.

    mpirun -n 3 python -m mpi4py -m tests.faults.run_accepted FOLDER

FOLDER is that of tests.faults.mutate_values. Each accepted file becomes a job, a layout and a
dataset, as `heterps run` makes them of it; those that come out equal are trained once, a few steps
long. FOLDER/current names the file at hand. Prints how many files ended in which way:

    right      learned what plain torch learns
    trained    to its end; the oracle does not know rounding and rows that are not admitted
    diverges   the oracle's losses are no finite numbers either
    planned    its layout has more ranks than this world
    refused    by one UserError, on all ranks
    equal      to one before
"""

from __future__ import annotations

import itertools
import json
import math
import signal
import sys
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job, TableOptions
from heterps_hpc.dataset import Dataset
from heterps_hpc.dataset.manifest import DatasetManifest
from heterps_hpc.errors import UserError
from heterps_hpc.launch.launcher import LaunchRequest
from heterps_hpc.launch.local import mpirun_command
from heterps_hpc.launch.mpi import Mpi
from heterps_hpc.layout import Layout
from heterps_hpc.layout_checks import check_cluster
from heterps_hpc.model import Model
from heterps_hpc.plan.planner import layout_from, make_plan
from heterps_hpc.profile import Profile
from heterps_hpc.rundir import RunDir
from heterps_hpc.runtime.rank import Rank
from heterps_hpc.runtime.state.saver import Saver
from heterps_hpc.runtime.training import Training
from heterps_hpc.runtime.votes import StopFlag
from tests.equivalence.cases import make_layout, make_model
from tests.equivalence.compare import differences, merge_ranks
from tests.equivalence.oracle import Learned, Oracle
from tests.equivalence.ranks import part_of
from tests.faults.mutate_values import CASE, CLUSTER

MAX_STEPS = 4
MAX_SECONDS = 60
LAUNCHER = Mpi(flavour="mpich", mpirun=Path("mpirun"), version="4")
PLAIN = TableOptions()


@dataclass(frozen=True)
class Question:
    """What ranks are given."""

    job: Job
    layout: Layout
    dataset: Dataset

    @property
    def model(self) -> Model:
        return make_model(self.job, self.dataset.manifest)

    def key(self) -> str:
        """Equal for all that ranks cannot tell apart."""
        job = json.loads(self.job.to_json())
        layout = json.loads(self.layout.to_json())
        for name in ("name", "measure", "plan", "launch", "cluster"):
            job.pop(name, None)
        for name in ("job", "plan"):
            layout.pop(name, None)
        return json.dumps([job, layout, self.dataset.manifest.to_json()], sort_keys=True)

    @property
    def has_oracle(self) -> bool:
        """Whether plain torch can give the answer."""
        train, tables = self.job.train, self.job.train.tables
        forgets = (tables.admit_after, tables.evict_after_steps, tables.evict_below_score)
        plain = forgets == (PLAIN.admit_after, None, None) and tables.init == PLAIN.init
        return plain and train.precision != "bf16" and train.wire == "float32"


class Accepted:
    """The folder of accepted files, and the sound ones that complete each to a question."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "accepted"
        self.job = Job.load(self.folder / "job-sound.json")
        self.profile = Profile.load(self.folder / "profile-sound.json")
        self.dataset = Dataset.open(self.job.data.train)

    def files(self) -> list[Path]:
        """All of them, the sound ones first."""
        return sorted(self.folder.iterdir(), key=lambda path: ("-sound" not in path.name, path))

    def question(self, path: Path) -> Question | None:
        """What becomes of a file; None if nothing that ranks would see."""
        what = path.name.partition("-")[0]
        job, dataset = self.job, self.dataset
        if what == "job":
            job = Job.load(path)
            dataset = Dataset.open(job.data.train)
            if job.data.test is not None:
                Dataset.open(job.data.test)
        elif what == "dataset":
            dataset = Dataset(self.dataset.path, DatasetManifest.load(path))
            dataset.check("sizes")
        elif what == "checkpoint":
            return None
        model = make_model(job, dataset.manifest)
        if what == "layout":
            layout = Layout.load(path)
            layout.check_model(model)
        elif what == "job" and job.plan == self.job.plan:
            layout = make_layout(CASE, job, model)
        else:
            layout = self.plan(what, path, job, model)
        request = LaunchRequest(RunDir(self.folder), layout, job, CLUSTER)
        assert mpirun_command(request, LAUNCHER)
        steps = min(job.train.steps or MAX_STEPS, MAX_STEPS)
        train = job.train.model_copy(update={"steps": steps, "epochs": None})
        return Question(job.model_copy(update={"train": train}), layout, dataset)

    def plan(self, what: str, path: Path, job: Job, model: Model) -> Layout:
        """As `heterps plan` does, with a scheduler that needs no learning unless one is named."""
        cluster = Cluster.load(path) if what == "cluster" else CLUSTER
        profile = Profile.load(path) if what == "profile" else self.profile
        changes: dict[str, Any] = {"seconds": min(job.plan.seconds, 1.0)}
        if what != "job":
            changes["scheduler"] = "exact"
        job = job.model_copy(update={"plan": job.plan.model_copy(update=changes)})
        layout = layout_from(
            make_plan(job, cluster, profile, model, 1000), job, cluster, profile, model
        )
        check_cluster(layout, cluster)
        return layout


def train(question: Question, comm: MPI.Intracomm, run: RunDir) -> Learned | None:
    """Train on the ranks of `comm` as the rank program does; the result is on the first."""
    rank = Rank(comm, question.job, question.layout, question.dataset)
    training = Training(rank, run, saver=Saver(rank, run, StopFlag()))
    result = training.run()
    part = part_of(rank, result)
    assert result.not_saved is None
    training.close()
    rank.close()
    parts = comm.gather(part)
    return None if parts is None else merge_ranks(parts)


class Runner:
    """One world that trains question after question."""

    def __init__(self, folder: Path) -> None:
        self.world = MPI.COMM_WORLD
        self.folder = folder
        self.accepted = Accepted(folder)
        self.seen: set[str] = set()
        self.numbers = itertools.count()

    def outcome(self, path: Path) -> str:
        """In which of the ways above a file ends; the same on all ranks."""
        question = self.world.bcast(self.question(path) if self.world.rank == 0 else None)
        if isinstance(question, str):
            return question
        try:
            expected = self.expected(question)
        except UserError:  # data that cannot be read: ranks must find that, too
            assert self.train_or_refuse(question) in ("refused", None)  # None: not among them
            return "refused"
        if expected is not None and not all(map(math.isfinite, expected.losses)):
            return "diverges"
        learned = self.train_or_refuse(question)
        if isinstance(learned, str):
            return learned
        if learned is None:
            return ""
        assert np.isfinite(learned.losses).all()
        if expected is None:
            return "trained"
        found = differences(learned, expected, question.job.train.precision)
        assert found == [], found
        return "right"

    def question(self, path: Path) -> Question | str:
        """What to train, or in which way a file ends without; one rank alone plans."""
        try:
            question = self.accepted.question(path)
        except UserError:
            return "refused"
        if question is None or question.key() in self.seen:
            return "equal"
        self.seen.add(question.key())
        return question if question.layout.num_ranks <= self.world.size else "planned"

    def expected(self, question: Question) -> Learned | None:
        """What plain torch learns, on all ranks."""
        if not question.has_oracle:
            return None
        found: Learned | UserError | None = None
        if self.world.rank == 0:
            try:
                found = Oracle(question.job, question.model, question.dataset).train()
            except UserError as error:
                found = error
        found = self.world.bcast(found)
        if isinstance(found, UserError):
            raise found
        return found

    def train_or_refuse(self, question: Question) -> Learned | str | None:
        """What the ranks learn, or "refused"."""
        try:
            return self.train(question)
        except UserError:
            return "refused"

    def train(self, question: Question) -> Learned | None:
        """On as many ranks as the layout has; the others wait."""
        size, rank = question.layout.num_ranks, self.world.rank
        comm = self.world.Split(0 if rank < size else MPI.UNDEFINED, rank)
        if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
            return None
        run = RunDir(self.folder / "runs" / str(next(self.numbers))).create()
        learned = train(question, comm, run)
        comm.Free()
        return learned

    def run(self) -> Counter[str]:
        """All files; ends the world where one ends in no way that it may."""
        ends: Counter[str] = Counter()
        for path in self.accepted.files():
            if self.world.rank == 0:
                (self.folder / "current").write_text(path.name)
            signal.alarm(MAX_SECONDS)
            try:
                end = self.outcome(path)
            except Exception:
                traceback.print_exc()
                self.world.Abort(1)
            signal.alarm(0)
            # together: with a broadcast the first rank would be at the next file already
            ends[self.world.allgather(end)[0]] += 1
        return ends


if __name__ == "__main__":
    found = Runner(Path(sys.argv[1])).run()
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps(found))
