"""What a model is, whatever it runs on: sizes of layers, tensors and tables for the profile."""

from __future__ import annotations

from math import prod

import numpy as np
import torch

from heterps_hpc.config import Job
from heterps_hpc.dataset import Schema
from heterps_hpc.model import Layer, Lookup, Model, is_data_tensor
from heterps_hpc.profile import LayerInfo, TableLoad, TensorInfo
from heterps_hpc.runtime.exchange.channel import make_wire
from heterps_hpc.runtime.exchange.routes import Shapes
from heterps_hpc.table_size import num_rows, table_bytes


def layer_info(model: Model, shapes: Shapes, job: Job, manifest: Schema) -> list[LayerInfo]:
    """Bytes and flops of every layer."""
    size = np.dtype(job.train.dtype).itemsize
    found = []
    for layer in model.layers:
        inputs = sum(prod(shapes.get(name, ())) for name in layer.reads)
        outputs = sum(prod(shapes[name]) for name in layer.writes)
        weights = _num_weights(layer)
        tables = {lookup.table for lookup in layer.lookups}
        found.append(
            LayerInfo(
                name=layer.name,
                kind=layer.kind,
                is_embedding=layer.is_embedding,
                input_bytes=inputs * size,
                output_bytes=outputs * size,
                activation_bytes=outputs * size,
                weight_bytes_total=weights * size,
                table_bytes_total=sum(
                    table_bytes(model, name, job.train, manifest.slots) for name in tables
                ),
                table_rows_total=sum(num_rows(model, name, manifest.slots) for name in tables),
                flops=6.0 * weights if weights else 4.0 * (inputs + outputs),
                keys_per_sample=sum(_num_keys(model, lookup, manifest) for lookup in layer.lookups),
            )
        )
    return found


def tensor_info(model: Model, shapes: Shapes, job: Job) -> list[TensorInfo]:
    """Tensors that a cut may have to carry."""
    size = make_wire(job.train).dtype.itemsize
    found = []
    for layer in model.layers:
        for name in layer.writes:
            readers = tuple(reader.name for reader in model.layers if name in reader.reads)
            if readers and not is_data_tensor(name):
                width = prod(shapes[name])
                found.append(
                    TensorInfo(
                        name=name,
                        writer=layer.name,
                        readers=readers,
                        bytes_per_sample=float(width * size),
                    )
                )
    return found


def table_loads(model: Model, job: Job, manifest: Schema) -> list[TableLoad]:
    """Rows that a table will hold, and how much work its slots are per sample."""
    found = []
    for table in model.tables:
        lookups = [found for found in model.lookups if found.table == table.name]
        num_keys = sum(_num_keys(model, lookup, manifest) for lookup in lookups)
        size = table_bytes(model, table.name, job.train, manifest.slots)
        work = num_keys * (1.0 + table.dim / 16)
        found.append(TableLoad(name=table.name, work=work, bytes_total=size))
    return found


def _num_keys(model: Model, lookup: Lookup, manifest: Schema) -> float:
    negative = model.negative(lookup.slot)
    if negative is not None:
        return float(negative.num_keys)
    return next(slot.mean_keys for slot in manifest.slots if slot.name == lookup.slot)


def _num_weights(layer: Layer) -> int:
    if layer.make is None:
        return 0
    with torch.device("meta"):
        module = layer.make()
    return sum(parameter.numel() for parameter in module.parameters())
