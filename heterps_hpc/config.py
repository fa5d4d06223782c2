"""Job: everything the user writes about one training job, checked before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from heterps_hpc.validation import Value

Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]
NotNegativeFloat = Annotated[float, Field(ge=0)]


class ModelSpec(Value):
    """A built-in model by name, or the user's own Python file; other keys go to the model."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    name: str | None = None
    file: Path | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.name is None) == (self.file is None):
            raise ValueError("give exactly one of `name` (a built-in model) and `file` (your own)")
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """The keys meant for the model itself."""
        return dict(self.model_extra or {})


class SyntheticData(Value):
    """A click log to generate when the data directories do not exist yet."""

    train_rows: Positive = 200_000
    test_rows: Positive = 20_000
    num_slots: Positive = 26
    cardinality: Positive = 10_000
    keys_per_sample: PositiveFloat = 1.0
    zipf: NotNegativeFloat = 1.1
    num_dense: NotNegative = 13
    seed: int = 1


class DataSpec(Value):
    """Where the click logs are; relative paths count from the job file."""

    train: Path
    test: Path | None = None
    synthetic: SyntheticData | None = None
    shuffle: bool = True
    drop_last: bool = False
    read_ahead: Positive = 2


class LearningRate(Value):
    """A factor on the base rate over steps: warm-up first, then constant, cosine or steps."""

    kind: Literal["constant", "cosine", "step"] = "constant"
    warmup_steps: NotNegative = 0
    total_steps: Positive | None = None
    step_every: Positive | None = None
    step_factor: PositiveFloat = 0.1
    final_factor: NotNegativeFloat = 0.0

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "step" and self.step_every is None:
            raise ValueError("kind 'step' needs `step_every`, the number of steps between drops")
        return self


class SparseOptimizer(Value):
    """How table rows learn."""

    optimizer: Literal["sgd", "adagrad", "adagrad_rowwise", "adam"] = "adagrad"
    lr: PositiveFloat = 0.05
    eps: PositiveFloat = 1e-8
    weight_decay: NotNegativeFloat = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    clip_norm: PositiveFloat | None = None
    schedule: LearningRate = LearningRate()


class DenseOptimizer(Value):
    """How dense parameters learn."""

    optimizer: Literal["sgd", "adagrad", "adam", "adamw"] = "adam"
    lr: PositiveFloat = 0.001
    eps: PositiveFloat = 1e-8
    weight_decay: NotNegativeFloat = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: NotNegativeFloat = 0.0
    clip_norm: PositiveFloat | None = None
    schedule: LearningRate = LearningRate()


class TableOptions(Value):
    """How tables admit, count, forget and spill rows; the same for all tables of a job."""

    num_partitions: Positive = 64
    admit_after: Positive = 1
    sketch_bytes: Positive | None = None
    counters: bool = False
    track_changes: bool = False  # when each row last changed, for exports of changed rows only
    show_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    evict_after_steps: Positive | None = None
    evict_below_score: float | None = None
    evict_every: Positive = 1000
    hot_bytes: Positive | None = None
    spill_dir: Path | None = None
    threads: Positive | None = None  # as many as the rank has cores
    on_nonfinite: Literal["refuse", "skip"] = "refuse"

    @model_validator(mode="after")
    def _tiers(self) -> Self:
        if (self.hot_bytes is None) != (self.spill_dir is None):
            raise ValueError("`hot_bytes` and `spill_dir` go together: a budget, and a local disk")
        return self


class TrainSpec(Value):
    """One optimizer step per batch; see docs/semantics.md for what each key means."""

    batch_size: Positive
    micro_batches: Positive = 1
    staleness: NotNegative = 1
    epochs: Positive | None = 1
    steps: Positive | None = None
    seed: int = 0
    sparse: SparseOptimizer = SparseOptimizer()
    dense: DenseOptimizer = DenseOptimizer()
    tables: TableOptions = TableOptions()
    precision: Literal["float32", "float64", "bf16"] = "float32"
    wire: Literal["float32", "bfloat16", "float16"] = "float32"
    reducer: Literal["auto", "horovod", "mpi", "torch"] = "auto"
    on_nan: Literal["stop", "skip"] = "stop"
    metrics_every: Positive = 50
    evaluate_every: Positive | None = None
    evaluate_at_end: bool = True
    init_from: Path | None = None

    @field_validator("micro_batches")
    @classmethod
    def _not_too_many(cls, value: int, info: Any) -> int:
        batch_size = info.data.get("batch_size")
        if batch_size is not None and value > batch_size:
            raise ValueError(f"{value} micro-batches of a batch of {batch_size}; use fewer")
        return value


class Goal(Value):
    """The throughput floor: absolute, or as a fraction of the best the cluster can do."""

    min_samples_per_second: PositiveFloat | None = None
    min_fraction_of_best: Annotated[float, Field(gt=0, le=1)] | None = None

    @model_validator(mode="after")
    def _one_floor(self) -> Self:
        if (self.min_samples_per_second is None) == (self.min_fraction_of_best is None):
            raise ValueError(
                "give exactly one of `min_samples_per_second` and `min_fraction_of_best`"
            )
        return self


class PlanSpec(Value):
    """Which scheduler decides, and for how long it may think."""

    scheduler: str = "rl"
    seconds: PositiveFloat = 10.0
    seed: int = 0


class CheckpointSpec(Value):
    """When to save; nothing is saved on a timer unless asked for, a stop signal always saves."""

    every_steps: Positive | None = None
    every_minutes: PositiveFloat | None = None
    keep: Positive = 2
    at_end: bool = True


class WatchSpec(Value):
    """When silence counts as a hang."""

    heartbeat_seconds: PositiveFloat = 5.0
    stall_seconds: PositiveFloat = 300.0
    on_stall: Literal["stop", "report"] = "stop"


class MeasureSpec(Value):
    """How `measure` takes its times."""

    batches: Positive = 6
    warmup: Positive = 2
    rank_counts: tuple[Positive, ...] = (1, 2)


class LaunchSpec(Value):
    """Limits of one run."""

    time_limit_minutes: PositiveFloat = 60.0
    max_restarts: NotNegative = 0
    oversubscribe: bool = False
    bind: Literal["none", "core"] = "none"


class Job(Value):
    """One training job, as written in job.yaml."""

    version: Literal[1] = 1
    name: Annotated[str, Field(min_length=1, max_length=120)]
    model: ModelSpec
    data: DataSpec
    train: TrainSpec
    goal: Goal = Goal(min_fraction_of_best=0.8)
    cluster: Path = Path("cluster.yaml")
    plan: PlanSpec = PlanSpec()
    measure: MeasureSpec = MeasureSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    watch: WatchSpec = WatchSpec()
    launch: LaunchSpec = LaunchSpec()

    @field_validator("name")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError(f"job name {value!r} has control characters; use printable ones")
        return value

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a job file; relative paths in it count from its own directory."""
        path = Path(path)
        job = super().load(path)
        return job.anchored(path.parent.resolve())

    @classmethod
    def parse_saved(cls, path: Path) -> Self:
        """Read a job that a run directory keeps: its paths are absolute already."""
        return super().load(path)

    def anchored(self, base: Path) -> Self:
        """The same job with absolute paths."""

        def absolute(path: Path | None) -> Path | None:
            return None if path is None else base / path.expanduser()

        tables = self.train.tables
        return self.model_copy(
            update={
                "cluster": absolute(self.cluster),
                "model": self.model.model_copy(update={"file": absolute(self.model.file)}),
                "data": self.data.model_copy(
                    update={"train": absolute(self.data.train), "test": absolute(self.data.test)}
                ),
                "train": self.train.model_copy(
                    update={
                        "init_from": absolute(self.train.init_from),
                        "tables": tables.model_copy(
                            update={"spill_dir": absolute(tables.spill_dir)}
                        ),
                    }
                ),
            }
        )
