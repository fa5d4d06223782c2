"""The two workloads, and the click logs that all contenders read.

Keys are small numbers, so that contenders which only index arrays can use them as they are; our
table hashes them like any others. Which numbers are frequent is shuffled, so that no contender
gains by hot rows that lie next to each other.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from heterps_hpc.dataset import (
    ColumnSelection,
    Dataset,
    Keys,
    Order,
    Reader,
    SampleRows,
    Schema,
    SlotSpec,
)
from heterps_hpc.dataset.write import DatasetWriter

_BLOCK = 16_384


@dataclass(frozen=True)
class Workload:
    """What is trained; both sides get exactly this."""

    name: str
    num_slots: int
    keys_per_slot: int
    num_dense: int
    hidden: tuple[int, ...]
    num_rows: int
    cardinality: int = 200_000
    zipf: float = 1.1
    dim: int = 16
    batch_size: int = 4096
    warmup_steps: int = 6
    timed_steps: int = 24
    settles: bool = True  # whether a second pass over the data is timed as well
    sparse_lr: float = 0.01
    dense_lr: float = 0.01
    slots: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", tuple(f"s{i}" for i in range(self.num_slots)))

    @property
    def first_steps(self) -> dict[str, int]:
        """Where the timed steps begin: in the first pass over the data, in which keys are new, and
        in the second, in which every key has its row."""
        growing = {"growing": self.warmup_steps}
        return growing | ({"settled": self.num_rows // self.batch_size} if self.settles else {})

    @property
    def num_steps(self) -> int:
        """All steps of one measurement."""
        return max(self.first_steps.values()) + self.timed_steps

    @property
    def input_width(self) -> int:
        """Columns that go into the first dense layer."""
        return self.num_slots * self.dim + self.num_dense

    def to_json(self) -> str:
        """As an argument of a contender's process."""
        fields = asdict(self)
        del fields["slots"]
        return json.dumps(fields)

    @staticmethod
    def from_json(text: str) -> Workload:
        """The inverse."""
        fields = json.loads(text)
        return Workload(**{**fields, "hidden": tuple(fields["hidden"])})


W1 = Workload(
    "W1", num_slots=26, keys_per_slot=1, num_dense=13, hidden=(512, 256, 128), num_rows=245_760
)
W2 = Workload("W2", num_slots=40, keys_per_slot=20, num_dense=0, hidden=(128, 64), num_rows=122_880)


class StepClock:
    """Samples per second of one process, growing and settled; to be asked at every step."""

    def __init__(self, work: Workload, samples_per_step: int) -> None:
        self._first_steps = work.first_steps
        self._timed_steps = work.timed_steps
        self._samples = samples_per_step * work.timed_steps
        self._began: dict[str, float] = {}
        self.rates: dict[str, float] = {}

    def turns(self, step: int) -> bool:
        """Whether a measurement begins or ends before this step."""
        return any(step - first in (0, self._timed_steps) for first in self._first_steps.values())

    def before(self, step: int) -> None:
        """Call it before every step, and once after the last."""
        now = time.perf_counter()
        for state, first in self._first_steps.items():
            if step == first + self._timed_steps:
                self.rates[state] = self._samples / (now - self._began[state])
            if step == first:
                self._began[state] = now


def ready_data(work: Workload, folder: Path) -> Path:
    """The workload's click log, made on first use."""
    path = folder / f"{work.name}-{work.num_rows}x{work.num_slots}x{work.keys_per_slot}"
    if not (path / "manifest.json").exists():
        _write(work, path)
    return path


def _write(work: Workload, path: Path) -> None:
    kind = "one" if work.keys_per_slot == 1 else "many"
    schema = Schema(
        slots=tuple(SlotSpec(name=name, kind=kind, weighted=False) for name in work.slots),
        dense_columns=tuple(f"d{i}" for i in range(work.num_dense)),
        labels=("click",),
    )
    random = np.random.default_rng(1)
    weights = np.arange(1, work.cardinality + 1, dtype=np.float64) ** -work.zipf
    ladder = np.cumsum(weights) / weights.sum()
    names = [random.permutation(work.cardinality).astype(np.uint64) for _ in work.slots]
    with DatasetWriter(path, schema) as writer:
        for first in range(0, work.num_rows, _BLOCK):
            count = min(_BLOCK, work.num_rows - first)
            slots = {}
            for name, ids in zip(work.slots, names, strict=True):
                draws = random.random(count * work.keys_per_slot)
                ranks = np.minimum(np.searchsorted(ladder, draws), work.cardinality - 1)
                offsets = None
                if kind == "many":
                    offsets = np.arange(count + 1, dtype=np.int64) * work.keys_per_slot
                slots[name] = Keys(ids[ranks], offsets)
            writer.append(
                SampleRows(
                    slots=slots,
                    dense=random.standard_normal((count, work.num_dense), dtype=np.float32),
                    labels=(random.random((count, 1)) < 0.3).astype(np.float32),
                )
            )


def open_reader(
    work: Workload, path: Path, rank: int, num_ranks: int, *, keys: bool = True
) -> Reader:
    """The same reader for every contender: this rank's equal part of each batch."""
    dataset = Dataset.open(path)
    order = Order(dataset, work.batch_size, seed=0, shuffle=True)
    share = work.batch_size // num_ranks
    want = ColumnSelection(slots=work.slots if keys else (), dense=work.num_dense > 0, labels=True)
    return Reader(dataset, order, want, rows=lambda _: [(rank * share, (rank + 1) * share)])
