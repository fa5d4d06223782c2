"""Builds everything that one rank needs to run its part of a layout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from mpi4py import MPI

from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset, Order, Reader, Want
from heterps_hpc.model import LOSS, SCORE, Model
from heterps_hpc.runtime.batches import want_of
from heterps_hpc.runtime.dense import DenseRole
from heterps_hpc.runtime.device import CPU, Device, choose_device, explain_out_of_memory
from heterps_hpc.runtime.exchange.channel import Channels
from heterps_hpc.runtime.exchange.routes import RankRoutes, Shapes, routes_of
from heterps_hpc.runtime.exchange.transport import Exchange
from heterps_hpc.runtime.health.phase_timer import Stopwatch
from heterps_hpc.runtime.lookahead import LookAhead
from heterps_hpc.runtime.shapes import tensor_shapes
from heterps_hpc.runtime.sparse import SparseRole
from heterps_hpc.runtime.stage import StageModules
from heterps_hpc.runtime.steps import Steps
from heterps_hpc.runtime.tables import TableShards
from heterps_hpc.runtime.world import World


class TrainingFailed(RuntimeError):
    """Training cannot go on; the message says step, rank and stage."""


@dataclass
class Parts:
    """A rank's share of the model, and how its roles are made."""

    world: World
    job: Job
    model: Model
    dataset: Dataset
    shapes: Shapes
    shards: TableShards | None
    modules: StageModules | None
    watch: Stopwatch
    device: Device

    @property
    def dtype(self) -> torch.dtype:
        """Type of rows and activations in memory."""
        return torch.float64 if self.job.train.precision == "float64" else torch.float32

    @property
    def routes(self) -> RankRoutes:
        """What this rank sends and receives."""
        return routes_of(self.world.rank, self.model, self.world.layout, self.shapes)

    def writes(self, tensor: str) -> bool:
        """Whether a dense layer of this rank's stage writes the tensor."""
        if self.modules is None:
            return False
        return any(tensor in layer.writes for layer in self.modules.layers)

    def sparse_role(self, exchange: Exchange, ring: int) -> SparseRole | None:
        """This rank's sparse role, if it holds shards."""
        if self.shards is None:
            return None
        return SparseRole(
            self.shards,
            self.routes.matrices,
            Channels(exchange, self.job.train, self.device),
            ring=ring,
            dtype=self.dtype,
            watch=self.watch,
        )

    def dense_role(self, exchange: Exchange, ring: int) -> DenseRole | None:
        """This rank's dense role, if its stage has modules."""
        if self.modules is None:
            return None
        return DenseRole(
            self.modules,
            self.routes,
            self.shapes,
            Channels(exchange, self.job.train, self.device),
            ring=ring,
            seed=self.job.train.seed,
            watch=self.watch,
            on_bad_loss=self._stop_at_bad_loss,
            who=self.world.name(),
        )

    def _stop_at_bad_loss(self, step: int, loss_sum: float) -> None:
        if self.job.train.on_nan == "stop":
            raise TrainingFailed(
                f"the loss of step {step} is {loss_sum} on {self.world.name()}; lower the "
                "learning rate, clip gradients (train.dense.clip_norm), or set train.on_nan: skip"
            )

    def order(self, dataset: Dataset, *, train: bool) -> Order:
        """The order of samples: shuffled for training, as stored otherwise."""
        data = self.job.data
        return Order(
            dataset,
            self.job.train.batch_size,
            self.job.train.seed,
            shuffle=data.shuffle and train,
            drop_last=data.drop_last and train,
        )

    def sparse_reader(
        self, dataset: Dataset, order: Order, steps: Steps, first: int
    ) -> Reader | LookAhead:
        """Keys of this rank's slots, for all rows of each batch; cold rows are fetched ahead."""
        assert self.shards is not None
        want = Want(slots=self.shards.data_slots(), dense=False, labels=self.shards.counters)
        reader = self._reader(dataset, order, want, steps, first, rows=None)
        return LookAhead(reader, self.shards.prefetch) if self.shards.has_tiers else reader

    def dense_reader(
        self, dataset: Dataset, order: Order, role: DenseRole, steps: Steps, first: int
    ) -> Reader:
        """Labels and dense columns, for this replica's rows of each batch."""
        want = want_of(
            role.data_reads,
            label=self.writes(SCORE),
            weight=dataset.manifest.has_weight
            and (self.writes(LOSS) or self.writes(SCORE) or "weight" in role.data_reads),
        )
        return self._reader(dataset, order, want, steps, first, rows=role.replica_ranges)

    def weight_reader(
        self, dataset: Dataset, order: Order, steps: Steps, first: int
    ) -> Reader | None:
        """Weights of whole batches where samples have weights: their sum divides the loss."""
        if not (dataset.manifest.has_weight and self.writes(LOSS)):
            return None
        want = Want(slots=(), dense=False, labels=False, weight=True)
        return self._reader(dataset, order, want, steps, first, rows=None)

    def _reader(
        self,
        dataset: Dataset,
        order: Order,
        want: Want,
        steps: Steps,
        first: int,
        rows: object,
    ) -> Reader:
        return Reader(
            dataset,
            order,
            want,
            rows=rows,  # type: ignore[arg-type]
            start=steps.position(first),
            num_epochs=None,
            read_ahead=self.job.data.read_ahead,
        )


def make_parts(world: World, job: Job, model: Model, dataset: Dataset, watch: Stopwatch) -> Parts:
    """Build this rank's tables and modules."""
    world.layout.check_model(model)
    entry = world.entry
    shapes = tensor_shapes(model, len(dataset.manifest.dense_columns))
    shards = TableShards(entry, model, world.layout, job, dataset) if entry.sparse else None
    device, modules = device_of(world), None
    if entry.dense:
        with explain_out_of_memory(world.name(), device):
            modules = StageModules(model, world.my_stage.layers, job, device)
    return Parts(world, job, model, dataset, shapes, shards, modules, watch, Device(device))


def device_of(world: World) -> torch.device:
    """This rank's device; all ranks of the job call it, as those of a node share its devices."""
    if all(component.device == CPU for component in world.layout.components):
        return torch.device(CPU)
    # not of `world`: when measuring, several groups of ranks share a node
    component = world.layout.components[world.entry.component]
    return choose_device(MPI.COMM_WORLD, component.device, world.name())
