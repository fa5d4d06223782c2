"""A run's beginning: its directory, its inputs frozen, its data there."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heterps_hpc import events
from heterps_hpc.checkpoint import newest
from heterps_hpc.checkpoint.compatibility import check_match
from heterps_hpc.checkpoint.exported import open_weights
from heterps_hpc.checkpoint.verify import check_shards
from heterps_hpc.cluster import Cluster
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.errors import UserError
from heterps_hpc.job_inputs import cluster_of, load_inputs
from heterps_hpc.layout import Layout
from heterps_hpc.layout_checks import check_cluster, check_job
from heterps_hpc.model import Model
from heterps_hpc.models import build_model
from heterps_hpc.run_lock import RunLock
from heterps_hpc.rundir import RunDir
from heterps_hpc.table_size import expected_rows

log = logging.getLogger(__name__)

_CHECKED_BYTES = 1 << 30  # about a second to read and hash: below 1 % of a job of two minutes


@contextmanager
def freeze(
    source: Path | Job,
    run_dir: Path | None,
    *,
    resume: bool = False,
    may_have_trained: bool = False,
) -> Iterator[tuple[Job, Cluster, RunDir]]:
    """Validate the job and its cluster, and keep copies in the run directory while it is ours.

    In this order: a run that is refused must not have changed the run that it was refused for.
    """
    if isinstance(source, Path):
        job, cluster = load_inputs(source)
    else:
        job, cluster = source, cluster_of(source)
    run = RunDir(run_dir or default_run_dir(source, job, resume=resume)).create()
    with _held(run):
        refuse_mixing(run, resume or may_have_trained)
        refuse_other_job(run, job, cluster, keeps_layout=resume)
        job.save(run.job)
        cluster.save(run.cluster)
        yield job, cluster, run


@contextmanager
def held_run(run_dir: Path, own_job: int | None = None) -> Iterator[tuple[Job, Cluster, RunDir]]:
    """The inputs that an earlier step froze, while the run directory is ours."""
    job, cluster, run = thaw(run_dir)
    with _held(run, own_job):
        yield job, cluster, run


@contextmanager
def _held(run: RunDir, own_job: int | None = None) -> Iterator[None]:
    """Nobody else uses the run directory: no process here, no rank, no job in a queue."""
    run.check_usable()
    with RunLock(run):
        if run.history.exists() and shutil.which("scontrol") is not None:
            from heterps_hpc.launch.slurm.launcher import refuse_second_job

            refuse_second_job(run, own_job)
        yield


def refuse_mixing(run: RunDir, resume: bool) -> None:
    """A run continues from the checkpoints that it finds; that must be what the user wants."""
    saved = run.saved_steps()
    if saved and not resume:
        raise UserError(
            f"{run.path} has a checkpoint of step {saved[-1]}; continue from it with --resume, or "
            "start again in another directory with --run-dir"
        )


def refuse_other_job(run: RunDir, job: Job, cluster: Cluster, *, keeps_layout: bool) -> None:
    """A job that cannot continue from what is there would take the inputs of the one that can."""
    layout = Layout.load(run.layout) if keeps_layout and run.layout.exists() else None
    found = newest(run.checkpoints)
    if layout is None and found is None:
        return
    dataset = _training_data(job)
    model = model_of(job, dataset)
    if found is not None:
        check_match(found, job, model.fingerprint(), dataset.manifest.fingerprint())
        check_shards(found)
    if layout is not None:
        layout.check_model(model)
        check_cluster(layout, cluster)
        check_job(layout, job)


def thaw(run_dir: Path) -> tuple[Job, Cluster, RunDir]:
    """The inputs that an earlier step froze."""
    directory = RunDir(run_dir)
    if not directory.job.exists():
        raise UserError(
            f"{run_dir}: not a run directory (it has no {directory.job.name}); "
            "make one with `heterps plan JOB` or `heterps run JOB`"
        )
    return Job.parse_saved(directory.job), Cluster.load(directory.cluster), directory


def default_run_dir(source: Path | Job, job: Job, *, resume: bool = False) -> Path:
    """Next to the job file: runs/NAME, then runs/NAME-2 …; the first that has not trained yet.

    Without a file, in the working directory. To resume, the last one that has.
    """
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in job.name).strip(".") or "job"
    folder = source.resolve().parent if isinstance(source, Path) else Path.cwd()
    first = folder / "runs" / plain
    number = 1
    last, path = first, first
    while events.read(RunDir(path)).was_launched:
        number += 1
        last, path = path, first.with_name(f"{plain}-{number}")
    return last if resume else path


def ready_data(job: Job) -> Dataset:
    """The training data; generated first if the job describes synthetic data."""
    dataset = _training_data(job)
    check_bytes(dataset)
    model = model_of(job, dataset)
    expected_rows(model, job.train)  # names tables
    if job.data.test is not None:  # else found missing at the first evaluation, hours later
        test = Dataset.open(job.data.test)
        check_bytes(test)
        if model.label_range is not None:
            learned = test.manifest.learning(job.data.label)
            learned.check_labels(*model.label_range, str(test.path))
    return dataset


def check_first_weights(job: Job, run: RunDir) -> None:
    """Refuse weights that no run can begin with before ranks measure; none are needed to resume."""
    if job.train.init_from is not None and not run.saved_steps():
        open_weights(job.train.init_from).close()


def _training_data(job: Job) -> Dataset:
    if job.data.synthetic is not None:
        from data_prep.synthetic import ensure_synthetic

        ensure_synthetic(job.data.synthetic, job.data.train, job.data.test)
    return Dataset.open(job.data.train)


def check_bytes(dataset: Dataset) -> None:
    """Compare small datasets with their checksums before a run; larger ones only when asked to."""
    size = dataset.manifest.num_stored_bytes
    if size <= _CHECKED_BYTES:
        dataset.check("checksums")
    else:
        log.info(
            "%s: %.1f GB, checked by size only; `heterps data info %s --verify` reads every byte",
            dataset.path,
            size / 1e9,
            dataset.path,
        )


def model_of(job: Job, dataset: Dataset) -> Model:
    """The job's model on that data."""
    return build_model(job.model, dataset.manifest.learning(job.data.label))


def samples_to_train(job: Job, dataset: Dataset) -> int:
    """Samples of the whole job, over all epochs."""
    if job.train.steps is not None:
        return job.train.steps * job.train.batch_size
    return (job.train.epochs or 1) * dataset.manifest.num_rows
