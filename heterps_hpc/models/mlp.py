"""What the built-in models share: parameters, the slots of a data set, fully connected layers.

Torch is imported only when a module is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

from pydantic import Field

from heterps_hpc.errors import UserError
from heterps_hpc.model import LOSS, SCORE, Layer, Lookup, TableSpec, dense
from heterps_hpc.validation import Value, nearest

Positive = Annotated[int, Field(gt=0, le=2**16)]  # widths and counts
PositiveFloat = Annotated[float, Field(gt=0, le=1e6)]
Probability = Annotated[float, Field(ge=0, lt=1)]


class SlotLike(Protocol):
    """What a model wants to know of a slot."""

    @property
    def name(self) -> str:
        """Its name in the data set."""

    @property
    def kind(self) -> str:
        """`one` key per sample, or `many` (zero or more)."""

    @property
    def cardinality(self) -> int:
        """Distinct keys seen when the data was written."""

    @property
    def sampled_keys(self) -> int:
        """Distinct keys in the key sample, which negatives and noise are drawn from; 0: unknown."""


@runtime_checkable
class DatasetManifestLike(Protocol):
    """A schema of data that is there, so that its labels are known."""

    def check_labels(self, low: float, high: float, where: str) -> None:
        """UserError unless the first label lies between the two."""


class SchemaLike(Protocol):
    """What a model wants to know of a data set; its manifest fits."""

    @property
    def slots(self) -> Sequence[SlotLike]:
        """Slots, in order."""

    @property
    def dense_columns(self) -> Sequence[str]:
        """Names of the dense columns."""

    @property
    def labels(self) -> Sequence[str]:
        """Names of the labels; models learn the first."""


class Parameters(Value):
    """Base of a model's parameters: unknown ones are refused by name with the nearest."""


class MlpParameters(Parameters):
    """Tables and fully connected layers, as most models have."""

    slots: tuple[str, ...] | None = None
    embedding_dim: Positive = 16
    pooling: Annotated[str, Field(pattern="^(sum|mean)$")] = "sum"
    init_scale: PositiveFloat = 0.01
    dropout: Probability = 0.0


def known_slots(schema: SchemaLike, names: Iterable[str] | None, model: str) -> list[str]:
    """The named slots, or all; a name that the data set lacks is refused."""
    known = [slot.name for slot in schema.slots]
    chosen = known if names is None else list(names)
    for name in chosen:
        if name not in known:
            raise UserError(
                f"model {model!r} needs slot {name!r}, which the data set does not have; "
                f"{nearest(name, known)}"
            )
    if len(set(chosen)) != len(chosen):
        twice = next(name for name in chosen if chosen.count(name) > 1)
        raise UserError(f"model {model!r} lists slot {twice!r} twice; list each slot once")
    if not chosen:
        raise UserError(f"model {model!r} has no slots; the data set must have at least one")
    return chosen


def tables_of(
    slots: Sequence[str], dim: int, init_scale: float, prefix: str = ""
) -> tuple[TableSpec, ...]:
    """One table per slot, named after it."""
    return tuple(TableSpec(f"{prefix}{slot}", dim, init_scale) for slot in slots)


def lookups_of(
    slots: Sequence[str], writes: str, pooling: Any = "sum", prefix: str = ""
) -> tuple[Lookup, ...]:
    """Each slot read in the table named after it, concatenated in one tensor."""
    return tuple(Lookup(slot, f"{prefix}{slot}", writes, pooling) for slot in slots)


def key_slot(schema: SchemaLike, name: str | None, model: str, parameter: str) -> str:
    """A slot with exactly one key per sample: the named one, else the last of that kind."""
    single = [slot.name for slot in schema.slots if slot.kind == "one"]
    if len(schema.slots) < 2 or not single:
        raise UserError(
            f"model {model!r} needs at least two slots, one of them with exactly one key per "
            f"sample; the data set has {len(schema.slots)} slots, {len(single)} of that kind"
        )
    if name is None:
        return str(single[-1])
    known_slots(schema, [name], model)
    if name not in single:
        raise UserError(
            f"model {model!r}: {parameter} {name!r} may have several keys or none per sample; "
            f"{nearest(name, single)}"
        )
    return name


class Stack(NamedTuple):
    """Layers, and the tensor that comes out of them."""

    layers: tuple[Layer, ...]
    writes: str
    width: int


def fc(
    name: str,
    reads: str,
    writes: str,
    in_width: int,
    out_width: int,
    dropout: float = 0.0,
    relu: bool = True,
) -> Layer:
    """One fully connected layer over what it reads, concatenated."""

    def make() -> Any:
        from heterps_hpc.models.layers import Fc

        return Fc(in_width, out_width, relu, dropout)

    return dense(name, make, reads, writes)


def hidden_layers(
    prefix: str, reads: str, in_width: int, widths: Sequence[int], dropout: float = 0.0
) -> Stack:
    """Layers with ReLU, each a layer of its own: fc1, fc2 … for prefix `fc`."""
    layers = []
    for number, width in enumerate(widths, start=1):
        name = f"{prefix}{number}"
        layers.append(fc(name, reads, name, in_width, width, dropout))
        reads, in_width = name, width
    return Stack(tuple(layers), reads, in_width)


def logit(name: str, below: Stack) -> Layer:
    """The last fully connected layer: one click logit per sample."""

    def make() -> Any:
        from heterps_hpc.models.layers import Logit

        return Logit(below.width)

    return dense(name, make, below.writes, SCORE)


def bce_loss() -> Layer:
    """Cross entropy of the click logit against the first label."""

    def make() -> Any:
        from heterps_hpc.models.layers import BceLoss

        return BceLoss()

    return dense("loss", make, f"{SCORE} label", LOSS, kind="loss")
