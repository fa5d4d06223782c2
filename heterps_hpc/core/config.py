"""What a table is: one validated value, so that the C++ core never sees a wrong one."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args

from heterps_hpc.core import _core

OptimizerName = Literal["sgd", "adagrad_rowwise", "adagrad", "adam"]
InitName = Literal["uniform", "normal", "zeros"]
DtypeName = Literal["float32", "float64"]
PrecisionName = Literal["float16", "bfloat16"]


@dataclass(frozen=True)
class TableConfig:
    """One table of embedding rows. All shards of a table must have the same config."""

    dim: int
    name: str = "table"  # with seed and key it determines every initial vector
    optimizer: OptimizerName = "adagrad_rowwise"
    lr: float = 0.01
    eps: float = 1e-8
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    clip_norm: float | None = None  # of a row's merged gradient
    initial_accumulator: float = 0.0
    seed: int = 0
    init: InitName = "uniform"
    init_scale: float = 0.01  # half width of the uniform, standard deviation of the normal
    dtype: DtypeName = "float32"  # to compute in, and of everything that goes in and out
    precision: PrecisionName | None = None  # of vectors in memory, if not dtype; state stays dtype
    num_partitions: int = 64  # fixed for the life of a table, checkpoints included
    threads: int = 1
    admission: int = 1  # sightings before a key gets a row
    sketch_bytes: int | None = None  # per partition: count sightings in a sketch, not exactly
    counters: bool = False  # show and click per row
    show_decay: float = 1.0  # per step
    track_steps: bool = False  # when each row last changed, for incremental exports
    max_age: int | None = None  # evict rows not seen for more steps than this
    min_score: float | None = None  # evict rows below this score (needs counters)
    show_weight: float = 0.1  # score = show_weight * (show - click) + click_weight * click
    click_weight: float = 1.0
    evict_every: int = 1000  # steps between two sweeps of the same partition
    nonfinite: Literal["refuse", "skip"] = "refuse"
    hot_bytes: int | None = None  # memory for rows; colder ones live in spill_path
    spill_path: str | Path | None = None  # a scratch file of this shard alone

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_numbers()
        self._check_combinations()

    def _fail(self, field: str, need: str, remedy: str = "") -> None:
        tail = f"; {remedy}" if remedy else ""
        raise ValueError(
            f"table {self.name!r}: {field} must be {need}, got {getattr(self, field)!r}{tail}"
        )

    def _check_choices(self) -> None:
        choices: dict[str, tuple[str, ...]] = {
            "optimizer": get_args(OptimizerName),
            "init": get_args(InitName),
            "dtype": get_args(DtypeName),
            "nonfinite": ("refuse", "skip"),
        }
        for field, allowed in choices.items():
            if getattr(self, field) not in allowed:
                self._fail(field, f"one of {', '.join(allowed)}")

    def _check_numbers(self) -> None:
        least = {"dim": 1, "num_partitions": 1, "threads": 1, "admission": 1, "evict_every": 1}
        optional = {"max_age": 1, "hot_bytes": 1, "sketch_bytes": 8}
        for field, low in (least | optional).items():
            value = getattr(self, field)
            if value is None and field in optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                self._fail(field, f"a whole number of at least {low}")
        for field, high in {"dim": 1 << 16, "num_partitions": 1 << 16, "admission": 65535}.items():
            if getattr(self, field) > high:
                self._fail(field, f"at most {high}")
        if not 0 <= self.seed < 1 << 64:
            self._fail("seed", "a number of 64 bits, not negative")
        for field in (
            "lr",
            "eps",
            "weight_decay",
            "initial_accumulator",
            "init_scale",
            "show_weight",
            "click_weight",
        ):
            if not (math.isfinite(getattr(self, field)) and getattr(self, field) >= 0):
                self._fail(field, "zero or more")
        for field in ("beta1", "beta2"):
            if not 0 <= getattr(self, field) < 1:
                self._fail(field, "in [0, 1)")
        if not 0 < self.show_decay <= 1:
            self._fail("show_decay", "in (0, 1]")
        if self.clip_norm is not None and not self.clip_norm > 0:
            self._fail("clip_norm", "more than zero", "None switches clipping off")

    def _check_combinations(self) -> None:
        if self.min_score is not None and not self.counters:
            self._fail("min_score", "None without counters", "set counters=True to keep scores")
        if self.sketch_bytes is not None and self.admission == 1:
            self._fail("sketch_bytes", "None at admission=1", "there is nothing to count")
        if self.precision is not None:
            if self.precision not in get_args(PrecisionName):
                self._fail("precision", f"one of {', '.join(get_args(PrecisionName))}, or None")
            if self.dtype != "float32":
                self._fail("dtype", "float32 where precision is given", "drop one of the two")
        if (self.hot_bytes is None) != (self.spill_path is None):
            self._fail("hot_bytes", "given together with spill_path", "give both or neither")

    def to_core(self) -> _core.Config:
        """The same, as the core's own value."""
        core = _core.Config()
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _RENAMED or value is None:
                continue
            setattr(core, field.name, value)
        core.optimizer = getattr(_core.Optimizer, self.optimizer)
        core.init = getattr(_core.Init, self.init)
        core.precision = getattr(_core.Precision, self.precision or "full")
        core.float64 = self.dtype == "float64"
        core.skip_nonfinite = self.nonfinite == "skip"
        core.evict_by_score = self.min_score is not None
        core.spill_path = "" if self.spill_path is None else str(self.spill_path)
        return core


_RENAMED = {"optimizer", "init", "dtype", "precision", "nonfinite", "spill_path"}
