"""Job: everything the user writes about one training job, checked before anything runs."""

from __future__ import annotations

import math
from datetime import date, datetime, time
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from heterps_hpc import validation
from heterps_hpc.validation import FilePath, Value

# Limits that no job reaches, so that a slip of the finger is refused at once and not by a rank
# that runs out of memory.
Positive = Annotated[int, Field(gt=0, le=10**12)]
PositiveFloat = Annotated[float, Field(gt=0, le=1e15)]
NotNegative = Annotated[int, Field(ge=0, le=10**12)]
NotNegativeFloat = Annotated[float, Field(ge=0, le=1e15)]
Rate = Annotated[float, Field(gt=0, le=1e6)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]
RankCount = Annotated[int, Field(gt=0, le=100_000)]
BatchSize = Annotated[int, Field(gt=0, le=2**30)]


class ModelSpec(Value):
    """A built-in model by name, or the user's own Python file; other keys go to the model."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    name: str | None = None  # a built-in model: docs/models.md lists them
    file: FilePath | None = None  # your own model: a Python file with `build(parameters, schema)`

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.name is None) == (self.file is None):
            raise ValueError("give exactly one of `name` (a built-in model) and `file` (your own)")
        for key, value in self.parameters.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"`{key[:60]}` is {value}; it must be a finite number")
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """The keys meant for the model itself."""
        return dict(self.model_extra or {})


class SyntheticData(Value):
    """A click log to generate when the data directories do not exist yet."""

    train_rows: Positive = 200_000  # samples to train on
    test_rows: Positive = 20_000  # samples to evaluate on
    num_slots: Annotated[int, Field(gt=0, le=10_000)] = 26  # categorical features
    cardinality: Positive = 10_000  # distinct keys of each slot
    # keys of each slot in a sample; not 1: on average
    keys_per_sample: Annotated[float, Field(gt=0, le=10_000)] = 1.0
    # exponent of how often keys occur; 0: all alike
    zipf: Annotated[float, Field(ge=0, le=100)] = 1.1
    num_dense: Annotated[int, Field(ge=0, le=10_000)] = 13  # dense columns
    seed: Seed = 1  # seed of the generator


class DataSpec(Value):
    """Where the click logs are; relative paths count from the job file."""

    train: FilePath  # the dataset to train on
    test: FilePath | None = None  # the dataset to evaluate on
    label: str | None = None  # the label to learn, by name; else the first
    synthetic: SyntheticData | None = None  # generate the two, if they are not there
    shuffle: bool = True  # another order in every epoch, from the seed
    drop_last: bool = False  # leave out the last batch of an epoch if it is short
    read_ahead: Annotated[int, Field(gt=0, le=1000)] = 2  # batches that a rank prefetches


class LearningRate(Value):
    """A factor on the base rate over steps: warm-up first, then constant, cosine or steps."""

    # `cosine` falls to `final_factor`, `step` drops every `step_every` steps
    kind: Literal["constant", "cosine", "step"] = "constant"
    warmup_steps: NotNegative = 0  # steps over which the factor rises to 1
    total_steps: Positive | None = None  # steps until `cosine` ends; else those of the run
    step_every: Positive | None = None  # steps between drops, for `step`
    step_factor: PositiveFloat = 0.1  # factor of each drop, for `step`
    final_factor: NotNegativeFloat = 0.0  # factor at the end, for `cosine`

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "step" and self.step_every is None:
            raise ValueError("kind 'step' needs `step_every`, the number of steps between drops")
        return self


class SparseOptimizer(Value):
    """How table rows learn."""

    # `adagrad_rowwise` keeps one sum for each row
    optimizer: Literal["sgd", "adagrad", "adagrad_rowwise", "adam"] = "adagrad"
    lr: Rate = 0.05  # learning rate
    eps: PositiveFloat = 1e-8  # of adagrad and adam: added to the divisor
    weight_decay: NotNegativeFloat = 0.0  # a share of the row, added to its gradient
    betas: tuple[Beta, Beta] = (0.9, 0.999)  # decay rates of adam
    # limit of the norm of a row's gradient, merged over the batch
    clip_norm: PositiveFloat | None = None
    initial_accumulator: NotNegativeFloat = 0.0  # what the sums of adagrad start from
    schedule: LearningRate = LearningRate()


class DenseOptimizer(Value):
    """How dense parameters learn."""

    optimizer: Literal["sgd", "adagrad", "adam", "adamw"] = "adam"  # as in `torch.optim`
    lr: Rate = 0.001  # learning rate
    eps: PositiveFloat = 1e-8  # of adagrad and adam: added to the divisor
    weight_decay: NotNegativeFloat = 0.0  # as in `torch.optim`
    betas: tuple[Beta, Beta] = (0.9, 0.999)  # decay rates of adam and adamw
    momentum: NotNegativeFloat = 0.0  # momentum of sgd
    clip_norm: PositiveFloat | None = None  # limit of the norm of all dense gradients of all stages
    schedule: LearningRate = LearningRate()
    compression: Literal["none", "fp16"] = "none"  # number format of summed gradients


class TableOptions(Value):
    """How tables admit, count, forget and spill rows; the same for all tables of a job."""

    # by key hash: the unit of sharding; fixed for the life of a checkpoint
    num_partitions: Annotated[int, Field(gt=0, le=2**16)] = 64
    # rows to prepare memory for: of each table, or by its name
    expected_rows: Positive | dict[str, Positive] | None = None
    # number format of vectors in memory; else `train.precision`
    precision: Literal["float16", "bfloat16"] | None = None
    # first values of new rows; the model says how wide
    init: Literal["uniform", "normal", "zeros"] = "uniform"
    # sightings of a key before it gets a row
    admit_after: Annotated[int, Field(gt=0, le=65_535)] = 1
    # size of a sketch that counts keys not yet admitted, of each partition
    sketch_bytes: Annotated[int, Field(ge=8, le=2**32)] | None = None
    counters: bool = False  # count shows and clicks of each row
    track_changes: bool = False  # when each row last changed, for exports of changed rows only
    show_decay: Annotated[float, Field(gt=0, le=1)] = 1.0  # factor on shows and clicks, per step
    evict_after_steps: Positive | None = None  # evict rows that were not seen for more steps
    evict_below_score: float | None = None  # evict rows below this score (needs `counters`)
    # score = show_weight·(shows − clicks) + click_weight·clicks
    show_weight: NotNegativeFloat = 0.1
    click_weight: NotNegativeFloat = 1.0  # see `show_weight`
    evict_every: Positive = 1000  # steps between two sweeps of a partition
    hot_bytes: Positive | None = None  # memory for rows of a rank; colder rows go to `spill_dir`
    spill_dir: FilePath | None = None  # directory of cold rows, on a local disk
    # threads of a rank; else as many as it has cores
    threads: Annotated[int, Field(gt=0, le=1024)] | None = None
    # gradients of a row that are not finite: end the run, or skip the row
    on_nonfinite: Literal["refuse", "skip"] = "refuse"

    @model_validator(mode="after")
    def _tiers(self) -> Self:
        if (self.hot_bytes is None) != (self.spill_dir is None):
            raise ValueError("`hot_bytes` and `spill_dir` go together: a budget, and a local disk")
        return self

    @model_validator(mode="after")
    def _counts(self) -> Self:
        if self.sketch_bytes is not None and self.admit_after == 1:
            raise ValueError(
                "`sketch_bytes` counts sightings before a row is admitted, but `admit_after` is 1, "
                "so there is nothing to count; raise `admit_after`, or drop `sketch_bytes`"
            )
        if self.evict_below_score is not None and not self.counters:
            raise ValueError(
                "`evict_below_score` needs the shows and clicks of each row; set `counters: true`"
            )
        return self


class TrainSpec(Value):
    """One optimizer step per batch; see docs/semantics.md for what each key means."""

    batch_size: BatchSize  # samples of one optimizer step, over all ranks
    # parts of a batch that go through the pipeline one after the other
    micro_batches: Annotated[int, Field(gt=0, le=10_000)] = 1
    # batches whose pushes a pull may miss; 0: synchronous
    staleness: Annotated[int, Field(ge=0, le=100)] = 1
    epochs: Positive | None = 1  # passes over the data
    steps: Positive | None = None  # batches in all, instead of epochs
    seed: Seed = 0  # seed of first values, order and sampling
    sparse: SparseOptimizer = SparseOptimizer()
    dense: DenseOptimizer = DenseOptimizer()
    tables: TableOptions = TableOptions()
    # number format of computing; `bf16`: dense layers by autocast
    precision: Literal["float32", "float64", "bf16"] = "float32"
    # number format of messages between ranks
    wire: Literal["float32", "bfloat16", "float16"] = "float32"
    reducer: Literal["auto", "horovod", "mpi", "torch"] = "auto"  # who sums dense gradients
    on_nan: Literal["stop", "skip"] = "stop"  # what to do about a batch whose loss is not a number
    metrics_every: Positive = 50  # steps between lines of metrics
    evaluate_every: Positive | None = None  # steps between evaluations on the test set
    evaluate_at_end: bool = True  # evaluate when training ends
    init_from: FilePath | None = None  # a run, a checkpoint or an export to start from

    @model_validator(mode="after")
    def _table_precision(self) -> Self:
        if self.tables.precision is not None and self.precision == "float64":
            raise ValueError(
                f"`tables.precision` is {self.tables.precision}, but `precision` is float64; rows "
                "of two bytes are computed with in float32: drop one of the two"
            )
        return self

    @property
    def dtype(self) -> Literal["float32", "float64"]:
        """Type of parameters and activations in memory, and of rows as they are computed with."""
        return "float64" if self.precision == "float64" else "float32"

    @field_validator("micro_batches")
    @classmethod
    def _not_too_many(cls, value: int, info: Any) -> int:
        batch_size = info.data.get("batch_size")
        if batch_size is not None and value > batch_size:
            raise ValueError(f"{value} micro-batches of a batch of {batch_size}; use fewer")
        return value


class Goal(Value):
    """What the job must keep to, one limit or several: speed at the least money, or a budget."""

    # a floor; the plan is the cheapest that reaches it
    min_samples_per_second: PositiveFloat | None = None
    # speed as a share of the fastest plan's
    min_fraction_of_best: Annotated[float, Field(gt=0, le=1)] | None = None
    max_hours: PositiveFloat | None = None  # of the run, start-up counted
    deadline: datetime | None = None  # such as 2030-05-01 18:00; start-up and queue counted
    max_money: PositiveFloat | None = None  # $ of training; alone: the fastest plan within it
    startup_minutes: NotNegativeFloat = 1.0  # what max_hours and deadline count for it

    @field_validator("deadline", mode="before")
    @classmethod
    def _a_day_ends_at_midnight(cls, value: object) -> object:
        """YAML reads a time without seconds as text, and a day alone as a date."""
        if isinstance(value, str | int | float):  # numbers: not seconds since 1970
            try:
                is_day = len(str(value)) <= len("2030-05-01")
                value = (date if is_day else datetime).fromisoformat(str(value))
            except ValueError:
                example = "write a time such as 2030-05-01 18:00, or a day"
                raise ValueError(f"got {value!r}; {example}") from None
        if isinstance(value, date) and not isinstance(value, datetime):
            return datetime.combine(value, time.max).replace(microsecond=0)
        return value

    @field_validator("deadline")
    @classmethod
    def _local_time(cls, value: datetime | None) -> datetime | None:
        return value.astimezone() if value is not None and value.tzinfo is None else value

    @model_validator(mode="after")
    def _some_limit(self) -> Self:
        if all(getattr(self, name) is None for name in self.limits()):
            raise ValueError(f"give at least one of {', '.join(f'`{n}`' for n in self.limits())}")
        return self

    def for_part(self, share: float) -> Self:
        """The goal of a part of the job, which hours and money shrink with."""
        shrinking = {"max_hours": self.max_hours, "max_money": self.max_money}
        changed = {key: value * share for key, value in shrinking.items() if value is not None}
        return self.model_copy(update=changed)

    @classmethod
    def limits(cls) -> tuple[str, ...]:
        """The keys that limit something."""
        return tuple(name for name in cls.model_fields if name != "startup_minutes")


class PlanSpec(Value):
    """Which scheduler decides, and for how long it may think."""

    scheduler: str = "rl"  # who decides; docs/planning.md lists them
    # how ranks are counted: at the lowest cost, or by a rule of the paper
    provisioning: Literal["least-money", "StaRatio", "StaPSRatio"] = "least-money"
    seconds: PositiveFloat = 10.0  # time that the scheduler may take
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0  # seed of the scheduler
    trial_runs: Annotated[int, Field(ge=0, le=20)] = 0  # plans that really run before one is taken
    trial_seconds: Annotated[float, Field(gt=0, le=3600)] = 20.0  # training time of each trial
    # then, and at every restart, the run's own times are planned from; never by default
    replan_after_minutes: PositiveFloat | None = None


class CheckpointSpec(Value):
    """When to save; nothing is saved on a timer unless asked for, a stop signal always saves."""

    every_steps: Positive | None = None  # batches between checkpoints
    every_minutes: PositiveFloat | None = None  # minutes between checkpoints
    keep: Positive = 2  # newest checkpoints that are kept
    at_end: bool = True  # save the final state


class WatchSpec(Value):
    """When silence counts as a hang."""

    heartbeat_seconds: PositiveFloat = 5.0  # between signs of life of a rank
    stall_seconds: PositiveFloat = 300.0  # without progress, until a rank counts as hung
    # `report` writes where each rank is, and continues
    on_stall: Literal["stop", "report"] = "stop"


class MeasureSpec(Value):
    """How `measure` takes its times."""

    # batches that are timed in each measurement
    batches: Annotated[int, Field(gt=0, le=10_000)] = 6
    # short batches are timed for so long, up to ten times as many
    seconds: Annotated[float, Field(ge=0, le=3600)] = 2.0
    warmup: Annotated[int, Field(gt=0, le=10_000)] = 2  # batches before those that are timed
    # numbers of ranks that each pool is measured with
    rank_counts: Annotated[tuple[RankCount, ...], Field(max_length=100)] = (1, 2)


class LaunchSpec(Value):
    """Limits of one run."""

    # then the run saves and stops; on Slurm by default from the prediction, here none
    time_limit_minutes: PositiveFloat | None = None
    max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 0  # automatic restarts after a failure
    oversubscribe: bool = False  # allow more ranks than cores
    bind: Literal["none", "core"] = "none"  # `core`: each rank stays on its cores


class Job(Value):
    """One training job, as written in job.yaml."""

    version: Literal[1] = 1  # version of the file format
    # names the run directory and the Slurm job
    name: Annotated[str, Field(min_length=1, max_length=120)]
    model: ModelSpec
    data: DataSpec
    train: TrainSpec
    goal: Goal = Goal(min_fraction_of_best=0.8)
    cluster: FilePath | None = None  # else cluster.yaml next to the job, else this machine
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
            return None if path is None else validation.absolute(path, base)

        tables = self.train.tables
        return self.model_copy(
            update={
                "cluster": absolute(self.cluster) or _usual_cluster(base),
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


def _usual_cluster(base: Path) -> Path | None:
    """The cluster file next to a job that names none, if there is one."""
    usual = base / "cluster.yaml"
    return usual if usual.exists() else None
