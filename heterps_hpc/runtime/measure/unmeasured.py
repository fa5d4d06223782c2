"""A profile without times: what a model is, for plans that rest on data sheets alone.

Needs torch (shapes are found on its `meta` device), but no MPI and no ranks.
"""

from __future__ import annotations

from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.model import Model
from heterps_hpc.profile import Profile
from heterps_hpc.runtime.measure.model_info import layer_facts, table_facts, tensor_facts
from heterps_hpc.runtime.shapes import tensor_shapes


def unmeasured_profile(job: Job, model: Model, data: Dataset) -> Profile:
    """Sizes of layers, tensors and tables; times are to be merged in from data sheets."""
    manifest = data.manifest
    shapes = tensor_shapes(model, len(manifest.dense_columns))
    return Profile(
        model=model.name,
        model_fingerprint=model.fingerprint(),
        batch_size=job.train.batch_size,
        layers=tuple(layer_facts(model, shapes, job, manifest)),
        tensors=tuple(tensor_facts(model, shapes, job)),
        tables=tuple(table_facts(model, job, manifest)),
        timings=(),
    )
