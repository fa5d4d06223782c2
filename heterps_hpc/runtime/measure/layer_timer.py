"""Seconds of every layer inside a training step, as an observer of training sees them.

Forward: from a layer's begin to its end. Backward: torch's engine runs a graph layer by layer, so
the time from the moment that a layer's outputs have their gradients to the moment that the next
one has is that layer's. Tables: their own pulls and pushes. All that remains of a step is nobody's
in particular: reading, packing, bookkeeping. On a device the moments are points in its stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from functools import cached_property
from time import perf_counter, thread_time

import torch

from heterps_hpc.config import MeasureSpec
from heterps_hpc.phases import Phase
from heterps_hpc.runtime.device import Device, Mark
from heterps_hpc.runtime.health.phase_timer import PhaseTimer
from heterps_hpc.runtime.observer import Observer
from heterps_hpc.runtime.stopwatch import Stopwatch

COMPUTING = (Phase.PULL, Phase.PUSH, Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE)
_UPDATE = "the optimizer's step"  # of all layers at once; no layer has a name with spaces


class LayerTimes(Observer):
    """Adds up seconds per layer."""

    def __init__(self, layer_of_table: Mapping[str, str], device: Device) -> None:
        self.stopwatch = Stopwatch(device)
        self._layer_of_table = layer_of_table
        self._table_seconds: dict[str, float] = {}  # of the step at hand
        self._began: Mark | None = None
        self._last: tuple[str, Mark] | None = None  # the layer whose backward is running

    def layer_begins(self, layer: str) -> None:
        """Its forward starts now."""
        self._began = self.stopwatch.start()

    def layer_ends(self, layer: str, written: Mapping[str, torch.Tensor]) -> None:
        """Its forward is over; the gradients of what it wrote start its backward."""
        assert self._began is not None
        self.stopwatch.stop(layer, self._began)
        for tensor in written.values():
            if tensor.requires_grad:
                tensor.register_hook(self._gradient_of(layer))  # type: ignore[no-untyped-call]

    def backward_ends(self) -> None:
        """What ran since the last gradient belongs to its layer."""
        if self._last is not None:
            self.stopwatch.stop(*self._last)
            self._last = None

    def update_begins(self) -> None:
        """The optimizer starts now."""
        self._began = self.stopwatch.start()

    def update_ends(self) -> None:
        """The optimizer is done."""
        assert self._began is not None
        self.stopwatch.stop(_UPDATE, self._began)

    def processor_clock(self) -> float:
        """Processor seconds of the calling thread."""
        return thread_time()

    def table_worked(self, table: str, seconds: float, processor_seconds: float) -> None:
        """The table's layer worked; tables worked on at once may belong to one layer."""
        self.stopwatch.add(self._layer_of_table[table], seconds)
        self._table_seconds[table] = self._table_seconds.get(table, 0.0) + processor_seconds

    def _gradient_of(self, layer: str) -> Callable[[torch.Tensor], None]:
        def arrived(_: torch.Tensor) -> None:
            if self._last is None:
                self._last = (layer, self.stopwatch.start())
            else:
                self._last = (layer, self.stopwatch.stop(*self._last))

        return arrived


class StepTimes(LayerTimes):
    """Keeps the seconds of every step after the warm-up: its own, by layer and by phase."""

    loads_ahead = False  # into fresh memory, in a short run: windows are timed by themselves

    def __init__(
        self,
        layer_of_table: Mapping[str, str],
        timer: PhaseTimer,
        device: Device,
        spec: MeasureSpec,
        tables: Mapping[str, Sized] | None = None,
    ) -> None:
        super().__init__(layer_of_table, device)
        self._device = device
        self._timer = timer
        timer.processor_clock = thread_time
        self._tables = tables or {}
        self._spec = spec
        self._before: dict[Phase, float] = {}
        self._processor_before: dict[Phase, float] = {}
        self._step_began = 0.0
        self._stopwatches: list[Stopwatch] = []  # one per step, read when all is over
        self.steps: list[float] = []
        self.phases: list[dict[Phase, float]] = []
        self.processor: list[dict[Phase, float]] = []  # seconds of it that the phases used
        self.tables: list[dict[str, float]] = []  # and each table
        self.rows: list[dict[str, int]] = []  # of each table, before and after steps

    def step_begins(self, step: int) -> None:
        """Start to count again."""
        if step == self._spec.warmup:
            self.rows.append(self._count_rows())
        self.stopwatch = Stopwatch(self._device)
        self._table_seconds = {}
        self._before = dict(self._timer.seconds)
        self._processor_before = dict(self._timer.processor_seconds)
        self._step_began = perf_counter()

    def step_ends(self, step: int) -> None:
        """Keep what was counted, once the caches are warm."""
        if step < self._spec.warmup:
            return
        self.steps.append(perf_counter() - self._step_began)
        self._stopwatches.append(self.stopwatch)
        self.tables.append(self._table_seconds)
        self.stopwatch = Stopwatch(self._device)  # what comes before the next step is nobody's
        self.phases.append(_since(self._before, self._timer.seconds))
        self.processor.append(_since(self._processor_before, self._timer.processor_seconds))
        self.rows.append(self._count_rows())

    def wants_stop(self) -> bool:
        """When enough batches have been timed for long enough: a few short ones would say more of
        the moment than of the pool."""
        return len(self.steps) >= self._spec.batches and sum(self.steps) >= self._spec.seconds

    @cached_property
    def layers(self) -> list[dict[str, float]]:
        """Seconds by layer, of every measured step; asked for when training is over."""
        return [stopwatch.seconds() for stopwatch in self._stopwatches]

    def typical(self) -> list[int]:
        """All measured steps but the fastest and the slowest fifth.

        Their means are taken, not the median of every layer: a processor that is taken away at
        times (a CPU quota, a busy neighbour) strikes now this layer and now that one, so that the
        medians of layers would add up to less than a step.
        """
        order = sorted(range(len(self.steps)), key=self.steps.__getitem__)
        drop = len(order) // 5
        return order[drop : len(order) - drop]

    def mean_step(self) -> float:
        """Seconds of a typical step."""
        return _mean([self.steps[i] for i in self.typical()])

    def mean_layer(self, layer: str) -> float:
        """Seconds of a layer in a typical step."""
        return _mean([self.layers[i].get(layer, 0.0) for i in self.typical()])

    def mean_update(self) -> float:
        """Seconds of the optimizer in a typical step."""
        return self.mean_layer(_UPDATE)

    @property
    def layers_with_tables(self) -> list[str]:
        """Layers that look keys up."""
        return sorted(set(self._layer_of_table.values()))

    def stretch(self) -> float:
        """Seconds that passed for one of the processor's while the rank computed: more than one
        where a CPU quota or other work takes the processor away."""
        passed = sum(self.phases[i].get(name, 0.0) for i in self.typical() for name in COMPUTING)
        used = sum(self.processor[i].get(name, 0.0) for i in self.typical() for name in COMPUTING)
        return max(1.0, passed / used) if used > 0 else 1.0

    def mean_table(self, table: str) -> float:
        """Processor seconds of a table in a typical step."""
        return _mean([self.tables[i].get(table, 0.0) for i in self.typical()])

    def mean_new_rows(self, table: str) -> float:
        """Rows that a table gets in a typical step."""
        grown = [self.rows[i + 1][table] - self.rows[i][table] for i in self.typical()]
        return max(0.0, _mean(grown))

    def _count_rows(self) -> dict[str, int]:
        return {name: len(table) for name, table in self._tables.items()}

    def mean_phases(self) -> dict[Phase, float]:
        """Seconds of every phase in a typical step."""
        names = sorted({name for step in self.phases for name in step})
        return {n: _mean([self.phases[i].get(n, 0.0) for i in self.typical()]) for n in names}


def _since(before: Mapping[Phase, float], now: Mapping[Phase, float]) -> dict[Phase, float]:
    return {name: seconds - before.get(name, 0.0) for name, seconds in now.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)
