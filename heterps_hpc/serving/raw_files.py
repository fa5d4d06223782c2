"""Rows to score straight from CSV and Parquet files, by the recipe that made the training data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from heterps_hpc.dataset.columns import SampleRows
from heterps_hpc.errors import UserError
from heterps_hpc.serving.inputs import Inputs

_SEGMENT_BYTES = 1 << 40  # a file is one segment: nothing is resumed here


def rows_of_file(path: Path, inputs: Inputs, delimiter: str = ",") -> Iterator[SampleRows]:
    """The rows in the order of the file, some at a time; a bad one ends it with its line."""
    if inputs.recipe is None:
        raise UserError(
            f"{path}: the training data came from no recipe, so raw rows cannot be read as it was; "
            "make a data set of them with `heterps prepare` and score that"
        )
    from data_prep.recipe import Recipe
    from data_prep.table import table_source

    recipe = Recipe.model_validate(inputs.recipe).without_labels()
    source = table_source([path], recipe, delimiter)
    for task in source.tasks(_SEGMENT_BYTES):
        for segment in source.segments(task, 0, _SEGMENT_BYTES):
            for block in segment.blocks:
                for row in block.bad:
                    line = "" if block.line is None else f", line {block.line + row.line}"
                    raise UserError(f"{path}{line}: {row.explain()}; every row must get a score")
                yield inputs.folded(block.rows)
