"""Seconds of every layer inside a training step, as an observer of training sees them.

Forward: from a layer's begin to its end. Backward: torch's engine runs a CPU graph layer by layer,
so the time from the moment that a layer's outputs have their gradients to the moment that the next
one has is that layer's. Tables: their own pulls and pushes. All that remains of a step is nobody's
in particular: reading, packing, bookkeeping.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch

from heterps_hpc.phases import Phase
from heterps_hpc.runtime.health.phase_timer import PhaseTimer
from heterps_hpc.runtime.observer import Observer


class LayerTimes(Observer):
    """Adds up seconds per layer."""

    def __init__(self, layer_of_table: Mapping[str, str]) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._layer_of_table = layer_of_table
        self._adding = threading.Lock()  # tables worked on at once may belong to one layer
        self._began = 0.0
        self._last: tuple[str, float] | None = None  # the layer whose backward is running

    def layer_begins(self, layer: str) -> None:
        """Its forward starts now."""
        self._began = time.perf_counter()

    def layer_ends(self, layer: str, written: Mapping[str, torch.Tensor]) -> None:
        """Its forward is over; the gradients of what it wrote start its backward."""
        self.seconds[layer] += time.perf_counter() - self._began
        for tensor in written.values():
            if tensor.requires_grad:
                tensor.register_hook(self._gradient_of(layer))  # type: ignore[no-untyped-call]

    def backward_ends(self) -> None:
        """What ran since the last gradient belongs to its layer."""
        if self._last is not None:
            layer, began = self._last
            self.seconds[layer] += time.perf_counter() - began
            self._last = None

    def table_worked(self, table: str, seconds: float) -> None:
        """The table's layer worked."""
        with self._adding:
            self.seconds[self._layer_of_table[table]] += seconds

    def _gradient_of(self, layer: str) -> Callable[[torch.Tensor], None]:
        def arrived(_: torch.Tensor) -> None:
            now = time.perf_counter()
            if self._last is not None:
                running, began = self._last
                self.seconds[running] += now - began
            self._last = (layer, now)

        return arrived


class StepTimes(LayerTimes):
    """Keeps the seconds of every step from some step on: its own, by layer and by phase."""

    def __init__(
        self, layer_of_table: Mapping[str, str], timer: PhaseTimer, measured_from: int
    ) -> None:
        super().__init__(layer_of_table)
        self._timer = timer
        self._measured_from = measured_from
        self._before: dict[Phase, float] = {}
        self._step_began = 0.0
        self.steps: list[float] = []
        self.layers: list[dict[str, float]] = []
        self.phases: list[dict[Phase, float]] = []

    def step_begins(self, step: int) -> None:
        """Start to count again."""
        self.seconds.clear()
        self._before = dict(self._timer.seconds)
        self._step_began = time.perf_counter()

    def step_ends(self, step: int) -> None:
        """Keep what was counted, once the caches are warm."""
        if step < self._measured_from:
            return
        self.steps.append(time.perf_counter() - self._step_began)
        self.layers.append(dict(self.seconds))
        phases = self._timer.seconds.items()
        self.phases.append({name: s - self._before.get(name, 0.0) for name, s in phases})

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

    def mean_phases(self) -> dict[Phase, float]:
        """Seconds of every phase in a typical step."""
        names = sorted({name for step in self.phases for name in step})
        return {n: _mean([self.phases[i].get(n, 0.0) for i in self.typical()]) for n in names}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)
