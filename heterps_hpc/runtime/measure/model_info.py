"""What a model is, whatever it runs on: sizes of layers, tensors and tables for the profile."""

from __future__ import annotations

from math import prod

import torch

from heterps_hpc.config import Job
from heterps_hpc.dataset import Schema
from heterps_hpc.model import Layer, Lookup, Model, is_data_tensor
from heterps_hpc.profile import LayerInfo, TableLoad, TensorInfo
from heterps_hpc.runtime.exchange.routes import Shapes
from heterps_hpc.runtime.exchange.wire import make_wire

_STATES = {"sgd": 0.0, "adagrad": 1.0, "adam": 2.0}  # per element; row-wise Adagrad: per row
_KEY_AND_INDEX_BYTES = 24.0


def layer_facts(model: Model, shapes: Shapes, job: Job, manifest: Schema) -> list[LayerInfo]:
    """Bytes and flops of every layer."""
    size = 8 if job.train.precision == "float64" else 4
    table_bytes = {fact.name: fact.bytes_total for fact in table_facts(model, job, manifest)}
    facts = []
    for layer in model.layers:
        inputs = sum(prod(shapes.get(name, ())) for name in layer.reads)
        outputs = sum(prod(shapes[name]) for name in layer.writes)
        weights = _num_weights(layer)
        tables = {lookup.table for lookup in layer.lookups}
        facts.append(
            LayerInfo(
                name=layer.name,
                kind=layer.kind,
                is_embedding=layer.is_embedding,
                input_bytes=inputs * size,
                output_bytes=outputs * size,
                activation_bytes=outputs * size,
                weight_bytes_total=weights * size,
                table_bytes_total=sum(table_bytes[name] for name in tables),
                flops=6.0 * weights if weights else 4.0 * (inputs + outputs),
                keys_per_sample=sum(_num_keys(model, lookup, manifest) for lookup in layer.lookups),
            )
        )
    return facts


def tensor_facts(model: Model, shapes: Shapes, job: Job) -> list[TensorInfo]:
    """Tensors that a cut may have to carry."""
    size = make_wire(job.train).dtype.itemsize
    facts = []
    for layer in model.layers:
        for name in layer.writes:
            readers = tuple(reader.name for reader in model.layers if name in reader.reads)
            if readers and not is_data_tensor(name):
                width = prod(shapes[name])
                facts.append(
                    TensorInfo(
                        name=name,
                        writer=layer.name,
                        readers=readers,
                        bytes_per_sample=float(width * size),
                    )
                )
    return facts


def table_facts(model: Model, job: Job, manifest: Schema) -> list[TableLoad]:
    """Rows that a table will hold, and how much work its slots are per sample."""
    slots = {slot.name: slot for slot in manifest.slots}
    facts = []
    for table in model.tables:
        rows, work = 0.0, 0.0
        for lookup in (found for found in model.lookups if found.table == table.name):
            negative = model.negative(lookup.slot)
            slot = slots[negative.source if negative else lookup.slot]
            rows = max(rows, float(slot.cardinality))
            work += _num_keys(model, lookup, manifest) * (1.0 + table.dim / 16)
        optimizer = job.train.sparse.optimizer
        state = 1.0 if optimizer == "adagrad_rowwise" else _STATES[optimizer] * table.dim
        row_bytes = 4 * (table.dim + state) + _KEY_AND_INDEX_BYTES
        facts.append(TableLoad(name=table.name, work=work, bytes_total=rows * row_bytes))
    return facts


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
