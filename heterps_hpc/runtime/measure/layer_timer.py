"""Seconds of every layer inside a training step, taken from the trainer at work.

Forward: the time between two layers of a stage. Backward: torch's engine runs a CPU graph layer
by layer, so the time from the moment that a layer's outputs have their gradients to the moment
that the next one has is that layer's. Tables: their own pulls and pushes. All that remains of a
step is nobody's in particular: reading, packing, bookkeeping.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from heterps_hpc.runtime.stage import StageModules
from heterps_hpc.runtime.tables import TableShards


class LayerTimes:
    """Adds up seconds per layer while it is attached."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._last: tuple[str, float] | None = None  # the layer whose backward is running

    def restart(self) -> None:
        """Forget what was counted so far."""
        self.seconds.clear()

    def watch_modules(self, modules: StageModules) -> None:
        """Time forward and backward of every dense layer of a stage."""
        run = modules.run
        owner = {name: layer.name for layer in modules.layers for name in layer.writes}

        def timed(tensors: dict[str, torch.Tensor]) -> Iterator[str]:
            began = time.perf_counter()
            for layer in run(tensors):
                self.seconds[layer] += time.perf_counter() - began
                for name in (name for name in owner if owner[name] == layer):
                    if tensors[name].requires_grad:
                        tensors[name].register_hook(self._gradient_of(layer))  # type: ignore[no-untyped-call]
                yield layer
                began = time.perf_counter()

        modules.run = timed  # type: ignore[method-assign]
        backward = modules.backward

        def timed_backward(
            roots: Sequence[torch.Tensor], seeds: Sequence[torch.Tensor | None]
        ) -> None:
            backward(roots, seeds)
            self._end_backward()

        modules.backward = timed_backward  # type: ignore[method-assign]

    def watch_tables(self, shards: TableShards, layer_of_table: dict[str, str]) -> None:
        """Time pulls and pushes of every table; of several at once each has its share."""
        share = 1 / shards.thread_pool.num_threads
        for name, table in shards.tables.items():
            timed = _TimedTable(table, self.seconds, layer_of_table[name], share)
            shards.tables[name] = timed  # type: ignore[assignment]

    def _end_backward(self) -> None:
        """A backward pass is over: what ran since the last gradient belongs to its layer."""
        if self._last is not None:
            layer, began = self._last
            self.seconds[layer] += time.perf_counter() - began
            self._last = None

    def _gradient_of(self, layer: str) -> Callable[[torch.Tensor], None]:
        def arrived(_: torch.Tensor) -> None:
            now = time.perf_counter()
            if self._last is not None:
                running, began = self._last
                self.seconds[running] += now - began
            self._last = (layer, now)

        return arrived


class _TimedTable:
    """A table whose pulls and pushes are timed; everything else is passed on."""

    _adding = threading.Lock()  # tables that are worked on at once may belong to one layer

    def __init__(
        self, table: Any, seconds: defaultdict[str, float], layer: str, share: float
    ) -> None:
        self._table = table
        self._seconds = seconds
        self._layer = layer
        self._share = share

    def pull(self, *arguments: Any, **options: Any) -> Any:
        """Timed."""
        return self._timed(self._table.pull, *arguments, **options)

    def push(self, *arguments: Any, **options: Any) -> Any:
        """Timed."""
        return self._timed(self._table.push, *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def _timed(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*arguments, **options)
        finally:
            took = time.perf_counter() - began
            with self._adding:
                self._seconds[self._layer] += self._share * took
