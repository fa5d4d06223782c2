"""Columns in memory: what writers are given and readers give back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.dataset.manifest import Schema

Floats = NDArray[np.float32]
Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]


class Keys(NamedTuple):
    """The keys of one slot: one per sample (offsets is None), or CSR.

    A tuple, for a reader makes one per slot and batch, and a dataclass takes three times as long.
    """

    keys: UInt64s
    offsets: Int64s | None = None
    weights: Floats | None = None

    @property
    def num_rows(self) -> int:
        """Samples, not keys."""
        return len(self.keys) if self.offsets is None else len(self.offsets) - 1

    def cut(self, first: int, last: int) -> Keys:
        """The samples first .. last - 1; keys and weights are views."""
        if self.offsets is None:
            return Keys(self.keys[first:last])
        lo, hi = int(self.offsets[first]), int(self.offsets[last])
        weights = None if self.weights is None else self.weights[lo:hi]
        return Keys(self.keys[lo:hi], self.offsets[first : last + 1] - lo, weights)

    def pick(self, rows: Int64s) -> Keys:
        """Copies of the given samples, in that order."""
        if self.offsets is None:
            return Keys(self.keys[rows])
        picked = Ragged(np.diff(self.offsets)).pick(rows)
        weights = None if self.weights is None else picked.copy(self.weights)
        return Keys(picked.copy(self.keys), picked.offsets, weights)

    @staticmethod
    def join(parts: Sequence[Keys]) -> Keys:
        """One after the other."""
        keys = np.concatenate([part.keys for part in parts])
        if parts[0].offsets is None:
            return Keys(keys)
        lengths = [np.diff(part.offsets) for part in parts if part.offsets is not None]
        weights = [part.weights for part in parts if part.weights is not None]
        return Keys(
            keys,
            offsets_of(np.concatenate(lengths)),
            np.concatenate(weights) if weights else None,
        )


_as_keys = partial(tuple.__new__, Keys)


def one_key_slots(names: Iterable[str], matrix: UInt64s) -> dict[str, Keys]:
    """Slots of one key per sample, one for each row of the matrix, as views.

    Without a call of Python's for each slot, which `Keys(...)` would be.
    """
    nothing = (None,) * len(matrix)
    parts = zip(matrix, nothing, nothing, strict=True)
    return dict(zip(names, map(_as_keys, parts), strict=True))


_SINGLE = ("dense", "labels", "weight", "group", "sample_ids", "ids")


def _cut(column: Any, first: int, last: int) -> Any:
    return None if column is None else column[first:last]


def _pick(column: Any, rows: Int64s) -> Any:
    return None if column is None else column[rows]


def offsets_of(lengths: NDArray[Any]) -> Int64s:
    """CSR offsets from the number of keys of each sample."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


class Ragged:
    """How many keys each of some samples has, and where they begin.

    Where all have the same number, as histories cut to a length do, their keys are a matrix and a
    sample is a row of it, which is copied at once: four times cheaper than key by key.
    """

    def __init__(self, lengths: NDArray[Any]) -> None:
        self._lengths = lengths
        self._starts: Int64s | None = None
        self._width = int(lengths[0]) if len(lengths) else 0
        if bool((lengths != self._width).any()):
            self._starts = np.cumsum(lengths, dtype=np.int64)
            self._starts -= lengths

    def offsets(self) -> Int64s:
        """CSR offsets of all samples."""
        if self._starts is None:
            return _even_offsets(len(self._lengths), self._width)
        return offsets_of(self._lengths)

    def pick(self, rows: Int64s) -> PickedKeys:
        """What is needed to copy the keys of some samples, in that order."""
        if self._starts is None:
            return PickedKeys(rows, self._width, _even_offsets(len(rows), self._width))
        lengths = self._lengths[rows]
        offsets = offsets_of(lengths)
        # the start of each key's sample, moved on by the key's place in the sample
        places = np.repeat(self._starts[rows] - offsets[:-1], lengths)
        places += np.arange(len(places))
        return PickedKeys(places, None, offsets)


class PickedKeys:
    """Some samples of one slot: by row number if all have `width` keys, else by place of key."""

    def __init__(self, places: Int64s, width: int | None, offsets: Int64s) -> None:
        self._places = places
        self._width = width
        self.offsets = offsets

    @property
    def num_keys(self) -> int:
        """Keys of all picked samples."""
        return int(self.offsets[-1])

    def copy(self, values: NDArray[Any]) -> NDArray[Any]:
        """What belongs to the picked samples, their keys or weights, as a new array."""
        return self.take(values, np.empty(self.num_keys, values.dtype))

    def take(self, values: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
        """Copy what belongs to the picked samples, their keys or weights, into `out`."""
        # mode="clip" lets numpy write into `out` directly; places are in range by construction
        if self._width is None:
            return np.take(values, self._places, out=out, mode="clip")
        if self._width:
            matrix = values.reshape(-1, self._width)
            np.take(matrix, self._places, 0, out.reshape(-1, self._width), mode="clip")
        return out


def _even_offsets(num_rows: int, width: int) -> Int64s:
    offsets = np.arange(num_rows + 1)
    offsets *= width
    return offsets


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Some samples, as columns; a column that was not asked for is None or absent."""

    slots: Mapping[str, Keys] = field(default_factory=dict)
    dense: Floats | None = None
    labels: Floats | None = None
    weight: Floats | None = None
    group: UInt64s | None = None
    sample_ids: Int64s | None = None
    ids: NDArray[np.object_] | None = None  # texts by which the user knows the rows

    @property
    def num_rows(self) -> int:
        """Samples."""
        for column in (self.labels, self.dense, self.weight, self.group, self.sample_ids):
            if column is not None:
                return len(column)
        return next((keys.num_rows for keys in self.slots.values()), 0)

    def cut(self, first: int, last: int) -> SampleRows:
        """The samples first .. last - 1, as views."""
        if first == 0 and last == self.num_rows:
            return self
        return SampleRows(
            {name: keys.cut(first, last) for name, keys in self.slots.items()},
            *(_cut(getattr(self, name), first, last) for name in _SINGLE),
        )

    def pick(self, rows: Int64s) -> SampleRows:
        """Copies of the given samples, in that order."""
        return SampleRows(
            {name: keys.pick(rows) for name, keys in self.slots.items()},
            *(_pick(getattr(self, name), rows) for name in _SINGLE),
        )

    @staticmethod
    def join(parts: Sequence[SampleRows]) -> SampleRows:
        """One after the other; all parts have the same columns."""
        if len(parts) == 1:
            return parts[0]

        def joined(name: str) -> Any:
            columns = [getattr(part, name) for part in parts]
            return None if columns[0] is None else np.concatenate(columns)

        return SampleRows(
            {name: Keys.join([part.slots[name] for part in parts]) for name in parts[0].slots},
            *(joined(name) for name in _SINGLE),
        )


def check_rows(rows: SampleRows, schema: Schema) -> SampleRows:
    """The same rows with the dtypes of the format, or ValueError that names the column."""
    num_rows = rows.num_rows
    expected = {slot.name for slot in schema.slots}
    if set(rows.slots) != expected:
        raise ValueError(f"slots {sorted(rows.slots)} given, the schema has {sorted(expected)}")
    slots = {}
    for slot in schema.slots:
        keys = rows.slots[slot.name]
        if (keys.offsets is not None) != (slot.kind == "many"):
            raise ValueError(f"slot {slot.name!r} is of kind {slot.kind!r}; offsets disagree")
        if (keys.weights is not None) != slot.weighted:
            raise ValueError(f"slot {slot.name!r}: weighted is {slot.weighted}; weights disagree")
        if keys.num_rows != num_rows:
            raise ValueError(f"slot {slot.name!r} has {keys.num_rows} rows, others {num_rows}")
        slots[slot.name] = _checked_keys(slot.name, keys)
    return SampleRows(
        slots,
        _matrix("dense", rows.dense, num_rows, len(schema.dense_columns)),
        _labels(rows.labels, num_rows, schema.labels),
        _sample_weights(rows.weight, num_rows, schema.has_weight),
        _vector("group", rows.group, num_rows, schema.has_group, np.uint64),
        ids=_vector("ids", rows.ids, num_rows, schema.id_column is not None, np.object_),
    )


def _checked_keys(name: str, keys: Keys) -> Keys:
    flat = np.ascontiguousarray(keys.keys, np.uint64)
    if keys.offsets is None:
        return Keys(flat)
    offsets = np.ascontiguousarray(keys.offsets, np.int64)
    if offsets[0] != 0 or offsets[-1] != len(flat) or bool((np.diff(offsets) < 0).any()):
        raise ValueError(f"slot {name!r}: offsets must rise from 0 to {len(flat)}")
    weights = None if keys.weights is None else np.ascontiguousarray(keys.weights, np.float32)
    if weights is not None and len(weights) != len(flat):
        raise ValueError(f"slot {name!r}: {len(weights)} weights for {len(flat)} keys")
    return Keys(flat, offsets, weights)


def _matrix(name: str, column: Any, num_rows: int, width: int) -> Floats | None:
    if width == 0:
        return None
    if column is None or np.shape(column) != (num_rows, width):
        got = None if column is None else np.shape(column)
        raise ValueError(f"{name} must have the shape {(num_rows, width)}, got {got}")
    return np.ascontiguousarray(column, np.float32)


def _labels(column: Any, num_rows: int, names: Sequence[str]) -> Floats | None:
    labels = _matrix("labels", column, num_rows, len(names))
    if labels is not None and not np.isfinite(labels).all():
        row, place = np.argwhere(~np.isfinite(labels))[0]
        raise ValueError(
            f"label {names[place]!r} is {labels[row, place]} in row {row}; every row needs a "
            "finite label, so leave such rows out"
        )
    return labels


def _sample_weights(column: Any, num_rows: int, present: bool) -> Floats | None:
    weights: Floats | None = _vector("weight", column, num_rows, present, np.float32)
    if weights is None:
        return None
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise ValueError(
            f"weight is {weights[bad[0]]} in row {bad[0]}; it must be a finite number, 0 or more: "
            "the loss of a batch is divided by the sum of its weights"
        )
    return weights


def _vector(name: str, column: Any, num_rows: int, present: bool, dtype: Any) -> Any:
    if present != (column is not None):
        raise ValueError(f"{name} is {'required' if present else 'not part of'} the schema")
    if column is None:
        return None
    if np.shape(column) != (num_rows,):
        raise ValueError(f"{name} must have the shape {(num_rows,)}, got {np.shape(column)}")
    return np.ascontiguousarray(column, dtype)
