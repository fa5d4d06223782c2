"""The state of one rank between two batches: exactly what a checkpoint keeps, and where it is put.

Everything that works on such a state takes a `Rank`: training, evaluation, prediction, saving,
resuming, warm starts and the summary. None of them needs to know that a training loop exists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, SupportsFloat

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray

from heterps_hpc.checkpoint import Checkpoint, Contents
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.dataset.manifest import Schema
from heterps_hpc.errors import UserError
from heterps_hpc.layout import Layout
from heterps_hpc.layout_checks import check_job
from heterps_hpc.model import LOSS, SCORE
from heterps_hpc.models import build_model
from heterps_hpc.runtime.dense import DenseRole
from heterps_hpc.runtime.device import (
    CPU,
    Device,
    choose_device,
    computes_in_bf16,
    describe,
    explain_out_of_memory,
)
from heterps_hpc.runtime.exchange.channel import Channels
from heterps_hpc.runtime.exchange.routes import routes_of
from heterps_hpc.runtime.exchange.transport import Exchange
from heterps_hpc.runtime.finite import FiniteWatch
from heterps_hpc.runtime.health.phase_timer import PhaseTimer
from heterps_hpc.runtime.metrics.scored import Scored
from heterps_hpc.runtime.shapes import tensor_shapes
from heterps_hpc.runtime.sparse import Prefetched, SparseRole
from heterps_hpc.runtime.stage import StageModules
from heterps_hpc.runtime.state.capture import Captured, dense_arrays, lookup_name, prefetched_arrays
from heterps_hpc.runtime.state.restore import load_dense, load_prefetched
from heterps_hpc.runtime.state.table_rows import load_table, row_format
from heterps_hpc.runtime.tables import TableShards
from heterps_hpc.runtime.world import World, make_world


class TrainingFailed(RuntimeError):
    """Training cannot continue; the message names step, rank and stage."""


@dataclass
class LossRecord:
    """The losses so far, as far as this rank knows them."""

    reported: list[float] = field(default_factory=list)  # of every step; on the reporter only
    # since the last report, of each batch: this rank's sum of losses, which may still be on its
    # way from a device, and the weight of the whole batch
    sums: list[tuple[SupportsFloat, float]] = field(default_factory=list)
    samples: int = 0  # since the last report
    seconds: float = 0.0  # of training, since the last report

    def known_sums(self) -> list[tuple[float, float]]:
        """The sums as numbers; waits for those that are on their way."""
        return [(float(loss), weight) for loss, weight in self.sums]


class Rank:
    """One rank of a layout: its place in the world, its tables and modules, and how far it is."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        job: Job,
        layout: Layout,
        dataset: Dataset,
        *,
        schema: Schema | None = None,
        timer: PhaseTimer | None = None,
    ) -> None:
        """`dataset` is what the rank works on; the model is built for its schema, or for that of
        the data that it was trained on, if another one is given."""
        self.job = job
        self.dataset = dataset
        self.world = make_world(comm, layout)
        self.timer = timer or PhaseTimer(self.world.rank)
        schema = schema or dataset.manifest.learning(job.data.label)
        self.model = build_model(job.model, schema)
        layout.check_model(self.model)
        check_job(layout, job)
        entry = self.world.entry
        self.timer.tick()
        self.shapes = tensor_shapes(self.model, len(schema.dense_columns))
        self.routes = routes_of(self.world.rank, self.model, layout, self.shapes)
        self.tables: TableShards | None = None
        if entry.sparse:
            self.tables = TableShards(entry, self.model, layout, job, dataset)
        self.timer.tick()
        self.modules: StageModules | None = None
        device = device_of(self.world)
        self.device = Device(device)
        self.timer.watch_device(self.device)
        self.watch = FiniteWatch(self.device)
        if entry.dense:
            self._check_precision()
            with explain_out_of_memory(self.world.name(), device):
                self.modules = StageModules(self.model, self.world.my_stage.layers, job, device)
        self.step = 0  # steps done: the next batch to train on
        self.prefetched: dict[int, Prefetched] = {}  # batches pulled before their step, by step
        self.losses = LossRecord()
        self.scored = Scored()  # since the last report

    def capture(self) -> Captured:
        """This rank's state as it is now: snapshots of tables, copies of the rest."""
        captured = Captured(self.step)
        if self.tables is not None:
            for name, table in self.tables.tables.items():
                captured.tables[name] = table.snapshot()
                captured.formats[name] = row_format(table)
            for step, lookup, column, value in prefetched_arrays(self.prefetched):
                held = self.tables.tables[lookup.table].partitions
                captured.add("ahead", str(step), lookup_name(lookup) + column, value, held)
        if self.modules is not None and self.world.entry.replica == 0:
            for name, column, value in dense_arrays(self.modules):
                captured.add("dense", name, column, value)
        for column, value in self._progress().items():
            captured.add("progress", column, str(self.world.rank), value)
        return captured

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take over a checkpoint's state; it may be of another layout: a rank reads its part."""
        with Contents(checkpoint) as contents:
            if self.tables is not None:
                for name, table in self.tables.tables.items():
                    load_table(contents, name, table, self.timer.tick)
                self.prefetched = load_prefetched(contents, self.tables, self.world.layout)
            if self.modules is not None:
                load_dense(contents, self.modules)
            self._restore_progress(contents)
        self.step = checkpoint.step

    def writes(self, tensor: str) -> bool:
        """Whether a dense layer of this rank's stage writes the tensor."""
        if self.modules is None:
            return False
        return any(tensor in layer.writes for layer in self.modules.layers)

    @property
    def reporter(self) -> int:
        """The rank that reports for all: the first one that sees losses."""
        layer = next(layer for layer in self.model.layers if LOSS in layer.writes)
        stage = self.world.layout.stage_of_layer(layer.name)
        return min(self.world.layout.stage_ranks(stage))

    @property
    def is_reporter(self) -> bool:
        """Whether this rank reports."""
        return self.world.rank == self.reporter

    def sparse_role(self, exchange: Exchange, ring: int) -> SparseRole | None:
        """How this rank serves rows, if it holds tables; `ring` batches may be in flight."""
        if self.tables is None:
            return None
        train = self.job.train
        return SparseRole(
            self.tables,
            self.routes.matrices,
            Channels(exchange, train, self.device),
            ring=ring,
            dtype=getattr(torch, train.dtype),
            timer=self.timer,
        )

    def dense_role(self, exchange: Exchange, ring: int) -> DenseRole | None:
        """How this rank runs its stage's modules; `ring` batches of rows may wait in buffers."""
        if self.modules is None:
            return None
        train = self.job.train
        return DenseRole(
            self.modules,
            self.routes,
            self.shapes,
            Channels(exchange, train, self.device),
            ring=ring,
            seed=train.seed,
            timer=self.timer,
            watch=self.watch,
            on_bad_loss=self._stop_at_bad_loss if train.on_nan == "stop" else None,
            who=self.world.name(),
        )

    def dense_tensors(self) -> dict[str, NDArray[Any]]:
        """Parameters of this rank's stage, by LAYER.PARAMETER."""
        named = () if self.modules is None else self.modules.named_parameters()
        return {name: value.detach().cpu().numpy().copy() for name, value in named}

    def table_rows(self) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
        """Keys and vectors of this rank's shards."""
        return {} if self.tables is None else self.tables.all_rows()

    def close(self) -> None:
        """Free the communicators; all ranks call it, so none does after an error of its own."""
        self.world.free()

    def _check_precision(self) -> None:
        device = self.device.device
        if self.job.train.precision == "bf16" and not computes_in_bf16(device):
            raise UserError(
                f"{self.world.name()}: train.precision is 'bf16', but {describe(device)} does not "
                "compute in it; use 'float32', or plan its layers for another pool"
            )

    def _stop_at_bad_loss(self, step: int, loss_sum: float) -> None:
        raise TrainingFailed(
            f"the loss of step {step} is {loss_sum} on {self.world.name()}; lower the learning "
            "rate, clip gradients (train.dense.clip_norm), or set train.on_nan: skip"
        )

    def _progress(self) -> dict[str, NDArray[np.float64]]:
        """What the next line of metrics.jsonl will be made of."""
        found: dict[str, NDArray[np.float64]] = {}
        if self.writes(LOSS):
            found["sums"] = np.array(self.losses.known_sums(), np.float64).reshape(-1, 2)
        if self.is_reporter:
            found["losses"] = np.array(self.losses.reported, np.float64)
            found["clock"] = np.array([self.losses.samples, self.losses.seconds], np.float64)
        if self.writes(SCORE):
            found["scored"] = np.stack(self.scored.columns())  # sample ids are exact up to 2**53
        return found

    def _restore_progress(self, contents: Contents) -> None:
        """The losses and scores that a checkpoint kept, by rank, whatever ranks there are now."""
        saved: dict[str, dict[int, NDArray[Any]]] = {}
        for name in contents.names("progress"):
            for place in contents.places("progress", name):
                saved.setdefault(name, {})[int(place.array.column)] = contents.whole(place)
        self.losses = LossRecord()
        if self.is_reporter:
            self.losses.reported = [x for part in saved.get("losses", {}).values() for x in part]
            for samples, seconds in saved.get("clock", {}).values():
                self.losses.samples, self.losses.seconds = int(samples), float(seconds)
        self._restore_scored(saved.get("scored", {}))
        sums = saved.get("sums", {})
        if not self.writes(LOSS) or not sums:
            return
        if set(self.world.layout.stage_ranks(self.world.entry.stage)) == set(sums):
            mine = sums[self.world.rank]
        else:  # the sums of all ranks are what counts: one rank takes them
            mine = next(iter(sums.values())).copy()
            mine[:, 0] = sum(part[:, 0] for part in sums.values()) if self.is_reporter else 0.0
        self.losses.sums = [(float(loss), float(weight)) for loss, weight in mine]

    def _restore_scored(self, saved: dict[int, NDArray[Any]]) -> None:
        """As each rank had them, or all on the first rank that scores."""
        if not self.writes(SCORE) or not saved:
            return
        entry = self.world.entry
        if set(saved) <= set(self.world.layout.stage_ranks(entry.stage)):
            mine = saved.get(entry.rank)
        else:
            mine = np.concatenate(list(saved.values()), axis=1) if entry.replica == 0 else None
        if mine is not None:
            scores, labels, weights, ids = mine
            self.scored.take_up([scores, labels, weights, ids.astype(np.int64)])


def device_of(world: World) -> torch.device:
    """This rank's device; all ranks of the job call it, as those of a node share its devices."""
    if all(component.device == CPU for component in world.layout.components):
        return torch.device(CPU)
    # not of `world`: when measuring, several groups of ranks share a node
    component = world.layout.components[world.entry.component]
    return choose_device(MPI.COMM_WORLD, component.device, world.name())
