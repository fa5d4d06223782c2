"""What a trained model reads: its columns, and raw values as keys by the recipe of its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_hpc.dataset.columns import Keys, SampleRows
from heterps_hpc.dataset.manifest import Schema
from heterps_hpc.errors import UserError
from heterps_hpc.validation import nearest

UInt64s = NDArray[np.uint64]


@dataclass(frozen=True)
class Inputs:
    """The columns of the training data, and how its keys were made from raw values."""

    schema: Schema
    recipe: dict[str, Any] | None  # as `heterps prepare` kept it; None: columns hold keys
    max_keys: int | None = None  # keys were folded into so many
    has_rare: bool = False  # categories below a frequency threshold share one key

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Inputs:
        """From what a data set, a checkpoint or an export says of its columns."""
        return cls(
            Schema.model_validate(data["schema"]),
            data["recipe"],
            data["max_keys"],
            data["has_rare"],
        )

    def rows(self, table: Any) -> SampleRows:
        """The samples of an Arrow table of raw columns, without labels and weights."""
        if self.recipe is None:
            return self._rows_of_keys(table)
        import pyarrow as pa

        from data_prep.recipe import BadColumn, Recipe
        from data_prep.recipe_rows import features_of

        recipe = Recipe.model_validate(self.recipe)
        self._check_columns(
            table,
            [slot.column for slot in recipe.slots] + [column.column for column in recipe.dense],
        )
        try:
            rows = features_of(table, recipe)
        except (BadColumn, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UserError(f"rows as in the training data are needed: {error}") from None
        return self.folded(rows)

    def keys(self, slot: str, values: Any) -> UInt64s:
        """The keys of some raw values of one slot."""
        import pyarrow as pa

        names = [spec.name for spec in self.schema.slots]
        if slot not in names:
            raise UserError(f"no slot {slot!r}; {nearest(slot, names)}")
        if self.recipe is None:
            return np.asarray(values, np.uint64)
        from data_prep.recipe import Recipe
        from data_prep.recipe_rows import keys_of_values

        column = next(
            column for column in Recipe.model_validate(self.recipe).slots if column.slot == slot
        )
        try:
            return self._fold(slot, keys_of_values(pa.array(values), column))
        except pa.ArrowInvalid as error:
            raise UserError(
                f"slot {slot!r}: values as in the training data are needed: {error}"
            ) from None

    def rare_key(self, slot: str) -> int | None:
        """The key that stands for all categories too rare to have one, if there is one."""
        if not self.has_rare:
            return None
        from data_prep.hashing import rare_key

        folded = self._fold(slot, np.array([rare_key(slot)], np.uint64))
        return int(folded[0])

    def _rows_of_keys(self, table: Any) -> SampleRows:
        slots = [slot.name for slot in self.schema.slots]
        self._check_columns(table, [*slots, *self.schema.dense_columns])
        keys = {}
        for spec in self.schema.slots:
            column = table[spec.name].combine_chunks()
            if spec.kind == "one":
                keys[spec.name] = Keys(column.to_numpy(zero_copy_only=False).astype(np.uint64))
            else:
                flat = column.flatten().to_numpy(zero_copy_only=False).astype(np.uint64)
                lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
                offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
                keys[spec.name] = Keys(flat, offsets)
        dense = [table[name].to_numpy().astype(np.float32) for name in self.schema.dense_columns]
        return SampleRows(keys, np.stack(dense, axis=1) if dense else None)

    def _check_columns(self, table: Any, wanted: list[str]) -> None:
        for name in wanted:
            if name not in table.column_names:
                raise UserError(f"no column {name!r} to score; {nearest(name, table.column_names)}")

    def folded(self, rows: SampleRows) -> SampleRows:
        """The same rows with their keys folded into `max_keys`, where the data was."""
        if self.max_keys is None:
            return rows
        slots = {
            name: Keys(self._fold(name, keys.keys), keys.offsets, keys.weights)
            for name, keys in rows.slots.items()
        }
        return replace(rows, slots=slots)

    def _fold(self, slot: str, keys: UInt64s) -> UInt64s:
        if self.max_keys is None:
            return keys
        from data_prep.hashing import capped

        return capped(slot, keys, self.max_keys)
