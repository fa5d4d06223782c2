"""The oracle for jobs that round: it is given the places, as a layout decides which values cross.

Short numbers on the wire: pooled rows are rounded once by the rank that holds them (part
by part where ranks share a slot), a dense tensor once where it goes to another stage; gradients
likewise, once on their way back from every stage that read the tensor, and are then added up.
`precision: bf16` is torch.autocast, layer by layer, over the rows that a rank has of a
micro-batch, since gradients of weights are rounded once for each of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heterps_hpc.config import Job
from heterps_hpc.core import partition_of
from heterps_hpc.dataset import Batch, Dataset
from heterps_hpc.layout import Layout
from heterps_hpc.model import Layer, Lookup, Model
from heterps_hpc.models.dropout import samples
from heterps_hpc.row_ranges import Range, replica_ranges
from tests.equivalence.cases import Case, make_job, make_layout, make_model
from tests.equivalence.oracle import Learned, Oracle, Pulled

WIRES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class RoundForward(torch.autograd.Function):
    """A value as it arrives; its gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, wire: torch.dtype) -> Tensor:
        return value.to(wire).to(value.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class Cross(torch.autograd.Function):
    """A tensor as every stage that reads it sees it; their gradients, each rounded, added up."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, num_readers: int, there: torch.dtype, back: Back
    ) -> tuple[Tensor, ...]:
        ctx.written, ctx.back = value.dtype, back
        return tuple(value.to(there).to(back.memory) for _ in range(num_readers))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        back: Back = ctx.back
        arrived = [(each * back.scale).to(back.wire).to(back.memory) for each in gradients]
        total = torch.stack(arrived).sum(dim=0) / back.scale
        return total.to(ctx.written), None, None, None


@dataclass(frozen=True)
class Back:
    """How gradients travel."""

    wire: torch.dtype
    memory: torch.dtype
    scale: float


class RoundingOracle(Oracle):
    """Trains a job in one process, rounding where a layout rounds."""

    def __init__(self, job: Job, model: Model, dataset: Dataset, layout: Layout) -> None:
        super().__init__(job, model, dataset)
        self.layout = layout
        self.wire = WIRES.get(job.train.wire, self.dtype)
        # near the batch size, against the subnormal numbers of float16; a power of two is exact
        scale = 2.0 ** int(np.log2(job.train.batch_size)) if job.train.wire == "float16" else 1.0
        self.back = Back(self.wire, self.dtype, scale)
        self.seen: dict[tuple[str, int], Tensor] = {}  # by tensor and reading stage

    def _run(self, layer: Layer, tensors: dict[str, Tensor], batch: Batch, pulled: Pulled) -> None:
        stage = self.layout.stage_of_layer(layer.name)
        if layer.is_embedding:
            super()._run(layer, tensors, batch, pulled)
        else:
            inputs = [self.seen.get((name, stage), tensors[name]) for name in layer.reads]
            tensors.update(zip(layer.writes, self._compute(layer, inputs, batch), strict=True))
        for name in layer.writes:
            stages = {
                self.layout.stage_of_layer(x.name) for x in self.model.layers if name in x.reads
            }
            there = self.dtype  # pooled rows were rounded in `_look_up`
            if not layer.is_embedding:
                stages.discard(stage)
                there = self.wire
            if stages:
                views = Cross.apply(tensors[name], len(stages), there, self.back)
                self.seen |= {(name, s): v for s, v in zip(sorted(stages), views, strict=True)}

    def _look_up(
        self, lookup: Lookup, batch: Batch, keys: NDArray[np.uint64], rows: Tensor
    ) -> Tensor:
        """What the holders of the table pool, each rounded, added up."""
        num_partitions = self.layout.num_partitions
        home = torch.from_numpy(partition_of(keys, num_partitions).astype(np.int64))
        held = [entry.partitions().get(lookup.table, []) for entry in self.layout.ranks]
        parts = []
        for partitions in filter(None, held):
            mine = torch.isin(home, torch.tensor(partitions)).to(self.dtype)[:, None]
            part = super()._look_up(lookup, batch, keys, rows * mine)
            parts.append(RoundForward.apply(part, self.wire))
        return torch.stack(parts).sum(dim=0)

    def _compute(self, layer: Layer, inputs: list[Tensor], batch: Batch) -> tuple[Tensor, ...]:
        """A dense layer; under autocast rank by rank and micro-batch by micro-batch."""
        module = self.modules[layer.name]
        if self.job.train.precision != "bf16":
            return as_tuple(module(*inputs))
        blocks = []
        for first, last in self._blocks(layer, batch.num_rows):
            ids = torch.from_numpy(batch.sample_ids[first:last])
            with (
                samples(self.job.train.seed, batch.epoch, ids),
                torch.autocast("cpu", dtype=torch.bfloat16),
            ):
                blocks.append(as_tuple(module(*(value[first:last] for value in inputs))))
        return tuple(torch.cat(column) for column in zip(*blocks, strict=True))

    def _blocks(self, layer: Layer, num_rows: int) -> list[Range]:
        """The rows that the ranks of a layer's stage compute at once."""
        count = self.layout.stages[self.layout.stage_of_layer(layer.name)].num_ranks
        cut = self.job.train.micro_batches
        each = (replica_ranges(num_rows, cut, count, replica) for replica in range(count))
        return sorted(rows for rows in chain.from_iterable(each) if rows[0] < rows[1])


def as_tuple(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A module's outputs."""
    return value if isinstance(value, tuple) else (value,)


def ask_oracle(case: Case, data: Path) -> Learned:
    """What a case should learn, by the oracle that fits it."""
    job = make_job(case, data)
    dataset = Dataset.open(job.data.train)
    model = make_model(job, dataset.manifest)
    if not case.rounds:
        return Oracle(job, model, dataset).train()
    return RoundingOracle(job, model, dataset, make_layout(case, job, model)).train()
