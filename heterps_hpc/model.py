"""Model: layers in topological order, wired by tensor names. Knows no torch.

A tensor is a matrix with one row per sample. A layer is either

* an embedding: it has look-ups, each of which reads a slot in a table and writes a tensor
  (several look-ups that write the same tensor are concatenated in it), or
* dense: `make` builds a torch module, which is called with the tensors the layer reads.

Some tensors come straight from the data set, and every stage reads its own rows of them:
`dense`, `label`, `weight`, and `length:SLOT` (the number of keys a sample has in a slot).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from heterps_hpc.errors import UserError
from heterps_hpc.validation import nearest

DATA_TENSORS = ("dense", "label", "weight")
LENGTH_PREFIX = "length:"
LOSS = "loss"
SCORE = "score"


@dataclass(frozen=True)
class TableSpec:
    """One key → row store."""

    name: str
    dim: int
    init_scale: float = 0.01

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise UserError(f"table {self.name!r} has dim {self.dim}; it needs at least 1")


@dataclass(frozen=True)
class NegativeSlot:
    """A derived slot: keys of `source` drawn from (seed, epoch, sample, draw), so that every
    rank can compute them and none needs to send them."""

    name: str
    source: str
    num_keys: int


@dataclass(frozen=True)
class Lookup:
    """One slot read in one table. Pooling `none` keeps `max_keys` vectors, concatenated."""

    slot: str
    table: str
    writes: str
    pooling: Literal["sum", "mean", "none"] = "sum"
    max_keys: int = 1

    def width(self, dim: int) -> int:
        """Columns of the written tensor."""
        return dim * (self.max_keys if self.pooling == "none" else 1)


@dataclass(frozen=True)
class Layer:
    """Unit of scheduling."""

    name: str
    kind: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    lookups: tuple[Lookup, ...] = ()
    make: Callable[[], Any] | None = field(default=None, compare=False)

    @property
    def is_embedding(self) -> bool:
        """Whether the layer reads tables rather than runs a torch module."""
        return bool(self.lookups)


def embedding(name: str, lookups: Iterable[Lookup]) -> Layer:
    """An embedding layer; it writes what its look-ups write."""
    lookups = tuple(lookups)
    writes = tuple(dict.fromkeys(lookup.writes for lookup in lookups))
    return Layer(name, "embedding", writes=writes, lookups=lookups)


def dense(name: str, make: Callable[[], Any], reads: str, writes: str, kind: str = "fc") -> Layer:
    """A layer that runs a torch module; tensor names are given as words of a string."""
    return Layer(name, kind, tuple(reads.split()), tuple(writes.split()), make=make)


@dataclass(frozen=True)
class Model:
    """Layers in order. The last writes `loss` (one number per sample) and, somewhere, `score`
    (a logit when `score_is_logit`, else any number that ranks)."""

    name: str
    layers: tuple[Layer, ...]
    tables: tuple[TableSpec, ...]
    negatives: tuple[NegativeSlot, ...] = ()
    score_is_logit: bool = True
    label_range: tuple[float, float] | None = (0.0, 1.0)  # what the loss allows; None: any number
    parameters: str = ""  # what the user asked for, as text: `make` hides widths from the hash

    def __post_init__(self) -> None:
        _unique("layer", [layer.name for layer in self.layers])
        _unique("table", [table.name for table in self.tables])
        self._check_wiring()
        self._check_lookups()

    def _check_wiring(self) -> None:
        written: dict[str, str] = {}
        read: set[str] = set()
        for layer in self.layers:
            for tensor in layer.reads:
                if is_data_tensor(tensor):
                    continue
                if tensor not in written:
                    raise UserError(
                        f"model {self.name!r}: layer {layer.name!r} reads {tensor!r}, which no "
                        f"earlier layer writes; {nearest(tensor, [*written, *DATA_TENSORS])}"
                    )
                read.add(tensor)
            for tensor in layer.writes:
                if tensor in written or is_data_tensor(tensor):
                    raise UserError(
                        f"model {self.name!r}: layer {layer.name!r} writes {tensor!r} again; "
                        "give it a name of its own"
                    )
                written[tensor] = layer.name
        for tensor, writer in written.items():
            if tensor not in read and tensor not in (LOSS, SCORE):
                raise UserError(
                    f"model {self.name!r}: tensor {tensor!r} of layer {writer!r} is never read; "
                    "read it or drop it"
                )
        for tensor in (LOSS, SCORE):
            if tensor not in written:
                raise UserError(f"model {self.name!r}: no layer writes {tensor!r}; one must")

    def _check_lookups(self) -> None:
        tables = {table.name for table in self.tables}
        used = set()
        for layer in self.layers:
            if layer.is_embedding == (layer.make is not None):
                raise UserError(
                    f"model {self.name!r}: layer {layer.name!r} needs either look-ups or a "
                    "module (`make`), and not both"
                )
            for lookup in layer.lookups:
                if lookup.table not in tables:
                    raise UserError(
                        f"model {self.name!r}: slot {lookup.slot!r} in layer {layer.name!r} has "
                        f"no table {lookup.table!r}; {nearest(lookup.table, sorted(tables))}"
                    )
                used.add(lookup.table)
        for table in tables - used:
            raise UserError(f"model {self.name!r}: table {table!r} is read by no slot; drop it")
        for table, layers in self.layers_of_tables().items():
            if len(layers) > 1:
                raise UserError(
                    f"model {self.name!r}: table {table!r} is read by layers "
                    f"{' and '.join(layers)}; a table belongs to one layer, so put its look-ups "
                    "into one"
                )

    def layers_of_tables(self) -> dict[str, list[str]]:
        """Which layers read each table."""
        owners: dict[str, list[str]] = {}
        for layer in self.layers:
            for lookup in layer.lookups:
                names = owners.setdefault(lookup.table, [])
                if layer.name not in names:
                    names.append(layer.name)
        return owners

    @property
    def lookups(self) -> list[Lookup]:
        """All look-ups, in layer order."""
        return [lookup for layer in self.layers for lookup in layer.lookups]

    def table(self, name: str) -> TableSpec:
        """The table of that name."""
        return next(table for table in self.tables if table.name == name)

    def layer(self, name: str) -> Layer:
        """The layer of that name."""
        return next(layer for layer in self.layers if layer.name == name)

    def negative(self, slot: str) -> NegativeSlot | None:
        """The derived slot of that name, if it is one."""
        return next((slot_ for slot_ in self.negatives if slot_.name == slot), None)

    def data_slots(self) -> list[str]:
        """Slots that the data set must have."""
        names = [lookup.slot for lookup in self.lookups]
        names += [
            tensor.removeprefix(LENGTH_PREFIX)
            for layer in self.layers
            for tensor in layer.reads
            if tensor.startswith(LENGTH_PREFIX)
        ]
        sources = {slot.name: slot.source for slot in self.negatives}
        return list(dict.fromkeys(sources.get(name, name) for name in names))

    def fingerprint(self) -> str:
        """A short hash of everything that decides what the model computes and costs."""
        identity = {
            "name": self.name,
            "parameters": self.parameters,
            "layers": [
                [layer.name, layer.kind, layer.reads, layer.writes, _fields(layer.lookups)]
                for layer in self.layers
            ],
            "tables": _fields(self.tables),
            "negatives": _fields(self.negatives),
        }
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def is_data_tensor(name: str) -> bool:
    """Whether every stage reads the tensor from the data set itself."""
    return name in DATA_TENSORS or name.startswith(LENGTH_PREFIX)


def _fields(items: Iterable[Any]) -> list[dict[str, Any]]:
    return [vars(item) for item in items]


def _unique(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"two {what}s are named {twice[0]!r}; names must differ")
