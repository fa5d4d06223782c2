"""Rows of a table by a recipe: Arrow columns become keys, numbers, labels and times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from data_prep.hashing import keys_of_integers, keys_of_texts, missing_key
from data_prep.recipe import BadColumn, DenseColumn, LabelColumn, Recipe, SlotColumn, TimeColumn
from heterps_hpc.dataset import Keys, SampleRows, offsets_of

UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]


def rows_of(table: Any, recipe: Recipe) -> tuple[SampleRows, Int64s | None]:
    """Rows of an Arrow table."""
    when = recipe.time_column
    slots = {slot.slot: _slot(table[slot.column], slot) for slot in recipe.slots}
    labels = [_label(table[column.column], column) for column in recipe.labels]
    dense = [_dense(table[column.column], column) for column in recipe.dense]
    return (
        SampleRows(
            slots,
            np.stack(dense, axis=1) if dense else None,
            np.stack(labels, axis=1) if labels else None,
            None if recipe.weight is None else _weights(table[recipe.weight], recipe.weight),
            None if recipe.group is None else _texts(table[recipe.group], recipe.group),
            ids=None if recipe.id is None else _ids(table[recipe.id]),
        ),
        None if when is None else times_of(table[when.column], when),
    )


def features_of(table: Any, recipe: Recipe) -> SampleRows:
    """What a model scores of an Arrow table: its slots and dense columns, without labels."""
    slots = {slot.slot: _slot(table[slot.column], slot) for slot in recipe.slots}
    dense = [_dense(table[column.column], column) for column in recipe.dense]
    return SampleRows(slots, np.stack(dense, axis=1) if dense else None)


def keys_of_values(values: Any, slot: SlotColumn) -> UInt64s:
    """The key of each of some single values of a slot."""
    return _keys(pa.chunked_array([values]), slot.slot, slot.integer)


def _ids(column: Any) -> NDArray[np.object_]:
    texts = column.cast(pa.string()).fill_null("")
    return np.array(texts.to_pylist(), np.object_)


def _slot(column: Any, slot: SlotColumn) -> Keys:
    if slot.has_many:
        return _many(column, slot)
    return Keys(_keys(column, slot.slot, slot.integer))


def _keys(column: Any, slot: str, integer: bool) -> UInt64s:
    return _integers(column, slot) if integer else _texts(column, slot)


def _integers(column: Any, slot: str) -> UInt64s:
    column = column.cast(pa.int64()) if column.type != pa.int64() else column
    values = column.fill_null(0).to_numpy().astype(np.int64, copy=False)
    if (values < 0).any():
        raise BadColumn(f"{slot}: an integer category must not be negative")
    keys = keys_of_integers(slot, values.view(np.uint64))
    if column.null_count:
        keys[column.is_null().to_numpy()] = missing_key(slot)
    return keys


def _texts(column: Any, slot: str) -> UInt64s:
    """Each different text is hashed once."""
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # no rows at all
        return np.empty(0, np.uint64)
    words = (text.encode() for text in column.dictionary.to_pylist())
    hashed = np.append(keys_of_texts(slot, words), np.uint64(missing_key(slot)))
    places = column.indices.fill_null(len(hashed) - 1).to_numpy(zero_copy_only=False)
    keys: UInt64s = hashed[places]
    return keys


def _many(column: Any, slot: SlotColumn) -> Keys:
    if slot.separator is not None:
        column = pc.split_pattern(column.cast(pa.string()), slot.separator)
    lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)):
        raise BadColumn(f"{slot.slot}: expected lists, got {lists.type}; give a separator")
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    values = pc.list_flatten(lists)
    kept = None
    if slot.separator is not None:  # an empty text is split into one empty word
        kept = pc.not_equal(values, "").to_numpy(zero_copy_only=False)
        ends = np.cumsum(np.concatenate([[0], kept.astype(np.int64)]))
        bounds = offsets_of(lengths)
        lengths = ends[bounds[1:]] - ends[bounds[:-1]]
        values = values.filter(pa.array(kept))
    if slot.integer and slot.separator is not None:
        values = values.cast(pa.int64())
    return Keys(_keys(values, slot.slot, slot.integer), offsets_of(lengths))


def _numbers(column: Any) -> NDArray[np.float64]:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = pc.if_else(pc.equal(column, ""), None, column)  # as when a file is read
    numbers: NDArray[np.float64] = column.cast(pa.float64()).to_numpy().astype(np.float64)
    return numbers


def _dense(column: Any, spec: DenseColumn) -> NDArray[np.float32]:
    numbers = _numbers(column)
    numbers = np.where(np.isnan(numbers), 0.0, numbers)
    if not np.isfinite(numbers).all():
        raise BadColumn(f"{spec.column}: expected a finite number")
    if spec.transform == "log":
        numbers = np.log1p(np.maximum(numbers, 0))
    return numbers.astype(np.float32)


def _label(column: Any, spec: LabelColumn) -> NDArray[np.float32]:
    """Each different text is understood once."""
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    if isinstance(column, pa.ChunkedArray):
        column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pa.ChunkedArray) or len(column) == 0:  # no rows at all
        return np.empty(0, np.float32)
    if column.null_count:
        raise BadColumn(f"{spec.column}: expected a label in every row")
    texts = [str(text) for text in column.dictionary.to_pylist()]
    places = column.indices.to_numpy(zero_copy_only=False)
    values = np.zeros(len(texts), np.float32)
    for place in np.unique(places).tolist():
        try:
            values[place] = spec.value(texts[place])
        except BadColumn as error:
            raise BadColumn(f"{spec.column}: expected {error}, got {texts[place][:40]!r}") from None
    labels: NDArray[np.float32] = values[places]
    return labels


def _weights(column: Any, name: str) -> NDArray[np.float32]:
    numbers = _numbers(column)
    if not (np.isfinite(numbers) & (numbers >= 0)).all():
        raise BadColumn(f"{name}: expected a finite number, 0 or more, in every row")
    return numbers.astype(np.float32)


def times_of(column: Any, spec: TimeColumn) -> Int64s:
    """Times as numbers in the order of time: as given, or in microseconds."""
    if column.null_count:
        raise BadColumn(f"{spec.column}: expected a time in every row")
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    if spec.format is not None:
        column = _stamps(lambda: pc.strptime(column.cast(pa.string()), spec.format, "us"), spec)
    elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = _parsed(column, spec)
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.timestamp("us")) if pa.types.is_date(column.type) else column
        column = column.cast(pa.int64())
    times: Int64s = column.cast(pa.int64()).to_numpy().astype(np.int64)
    return times


def _parsed(column: Any, spec: TimeColumn) -> Any:
    """Texts that are whole numbers, or ISO 8601 without or with a time zone."""
    for kind in (pa.int64(), pa.timestamp("us")):
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return _stamps(lambda: column.cast(pa.timestamp("us", "UTC")), spec)


def _stamps(convert: Callable[[], Any], spec: TimeColumn) -> Any:
    try:
        return convert()
    except pa.ArrowInvalid:
        wanted = "a number or ISO 8601" if spec.format is None else f"the format {spec.format!r}"
        raise BadColumn(
            f"{spec.column}: expected a time as {wanted} (a recipe may give "
            '`time: {column: .., format: "%d/%m/%Y"}`)'
        ) from None
