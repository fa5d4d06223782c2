"""A trained model in one process: raw rows in, scores out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit

from heterps_hpc.checkpoint import Checkpoint, Contents
from heterps_hpc.checkpoint.store import directory_of
from heterps_hpc.config import Job
from heterps_hpc.dataset import Dataset
from heterps_hpc.dataset.columns import Keys, SampleRows
from heterps_hpc.dataset.manifest import MANIFEST_FILE, DatasetManifest
from heterps_hpc.errors import UserError
from heterps_hpc.model import LENGTH_PREFIX, Layer, Model
from heterps_hpc.models import build_model
from heterps_hpc.rundir import RunDir
from heterps_hpc.serving.inputs import Inputs
from heterps_hpc.serving.raw_files import rows_of_file
from heterps_hpc.serving.score_module import ScoreModule, score_layers
from heterps_hpc.serving.sorted_table import SortedTable
from heterps_hpc.validation import nearest

Floats = NDArray[np.floating]
_ROWS_PER_BATCH = 8192


class Predictor:
    """Scores rows with one checkpoint of a run; see `heterps_hpc.load`."""

    def __init__(
        self,
        model: Model,
        inputs: Inputs,
        tables: Mapping[str, SortedTable],
        module: ScoreModule,
        *,
        step: int,
        autocast: bool = False,
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.tables = tables
        self.module = module
        self.step = step
        self._autocast = autocast
        self._embeddings = [layer for layer in score_layers(model) if layer.is_embedding]

    @classmethod
    def load(cls, run: Path | str, step: int | None = None) -> Predictor:
        """From a run directory: its newest checkpoint, or that of a step."""
        run = Path(run)
        paths = RunDir(run)
        if not paths.job.is_file():
            raise UserError(
                f"{run}: not a run directory (it has no {paths.job.name}); `heterps ls` lists runs"
            )
        job = Job.parse_saved(paths.job)
        place = run if step is None else directory_of(paths.checkpoints, step)
        checkpoint = Checkpoint.open(place)
        inputs = _inputs(job, checkpoint)
        model = build_model(job.model, inputs.schema)
        dtype = getattr(torch, job.train.dtype)
        with Contents(checkpoint) as contents:
            weights = {name: contents.dense(name)["value"] for name in contents.names("dense")}
            tables = {
                lookup.table: SortedTable.of_checkpoint(contents, lookup.table)
                for layer in score_layers(model)
                for lookup in layer.lookups
                if model.negative(lookup.slot) is None
            }
        return cls(
            model,
            inputs,
            tables,
            ScoreModule(model, weights, dtype),
            step=checkpoint.step,
            autocast=job.train.precision == "bf16",
        )

    def predict(self, data: Any, *, raw: bool = False) -> Floats:
        """One number per row: the probability of a click where the model gives a logit (`raw` for
        the logit itself), else the model's own score.

        `data` is a data set (or its directory), a CSV or Parquet file, a pandas DataFrame, an Arrow
        table, or a mapping from column name to values. Raw values become keys by the recipe that
        made the training data; where there is none (generated data), columns hold the keys.
        """
        scores = [self.score_rows(rows) for rows in self.batches(data)]
        joined = np.concatenate(scores) if scores else np.empty(0, np.float32)
        return joined if raw or not self.model.score_is_logit else sigmoid(joined)

    def embedding(self, slot: str, values: Any, table: str | None = None) -> Floats:
        """The vectors of raw values (user or item ids) of a slot; zeros for unknown ones."""
        read_by = {
            lookup.table
            for layer in self._embeddings
            for lookup in layer.lookups
            if lookup.slot == slot
        }
        if not read_by:
            known = sorted({x.slot for layer in self._embeddings for x in layer.lookups})
            raise UserError(f"the model reads no slot {slot!r}; {nearest(slot, known)}")
        if table is None and len(read_by) > 1:
            raise UserError(f"slot {slot!r} is in {len(read_by)} tables; give table= one of them")
        name = table if table is not None else next(iter(read_by))
        if name not in read_by:
            raise UserError(f"slot {slot!r} is not in table {name!r}; valid: {sorted(read_by)}")
        keys = Keys(self.inputs.keys(slot, values))
        return self.tables[name].rows(self._with_rare(slot, name, keys).keys)

    def score_rows(self, rows: SampleRows) -> Floats:
        """Scores of one batch of keys and numbers."""
        tensors = self.tensors(rows)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
            scores = self.module(*(torch.from_numpy(tensors[name]) for name in self.module.reads))
        values: Floats = scores.float().numpy() if self._autocast else scores.numpy()
        return values

    def tensors(self, rows: SampleRows) -> dict[str, Floats]:
        """The inputs of the dense layers: pooled embeddings, dense columns, numbers of keys."""
        dtype = self.module_dtype
        tensors: dict[str, Floats] = {}
        for layer in self._embeddings:
            tensors.update(self._embedded(layer, rows))
        if rows.dense is not None:
            tensors["dense"] = rows.dense.astype(dtype)
        for slot, keys in rows.slots.items():
            lengths = np.ones(keys.num_rows) if keys.offsets is None else np.diff(keys.offsets)
            tensors[LENGTH_PREFIX + slot] = lengths.astype(dtype)
        return tensors

    @property
    def module_dtype(self) -> np.dtype[Any]:
        """Type of the dense layers' inputs."""
        parameter = next(self.module.parameters(), None)
        double = parameter is not None and parameter.dtype == torch.float64
        return np.dtype(np.float64 if double else np.float32)

    def _embedded(self, layer: Layer, rows: SampleRows) -> dict[str, Floats]:
        parts: dict[str, list[Floats]] = {name: [] for name in layer.writes}
        for lookup in layer.lookups:
            if self.model.negative(lookup.slot) is not None:
                # negatives teach; the score of the true item does not depend on them
                width = lookup.width(self.model.table(lookup.table).dim)
                parts[lookup.writes].append(np.zeros((rows.num_rows, width), self.module_dtype))
                continue
            keys = self._with_rare(lookup.slot, lookup.table, rows.slots[lookup.slot])
            parts[lookup.writes].append(self.tables[lookup.table].pooled(lookup, keys))
        return {name: np.concatenate(columns, axis=1) for name, columns in parts.items()}

    def _with_rare(self, slot: str, table: str, keys: Keys) -> Keys:
        """Unknown categories read as the rare one where the data had a frequency threshold."""
        rare = self.inputs.rare_key(slot)
        if rare is None:
            return keys
        known = self.tables[table].has(keys.keys)
        return Keys(np.where(known, keys.keys, np.uint64(rare)), keys.offsets, keys.weights)

    def batches(self, data: Any, delimiter: str = ",") -> Iterator[SampleRows]:
        """What `predict` takes as batches of keys and numbers, with their ids where they have any;
        `delimiter` is that of a CSV file."""
        if isinstance(data, str | Path):
            path = Path(data)
            data = rows_of_file(path, self.inputs, delimiter) if path.is_file() else path
        if isinstance(data, Path):
            data = Dataset.open(data)
        if isinstance(data, Dataset):
            yield from self._dataset_batches(data)
            return
        blocks = data if isinstance(data, Iterator) else [self.inputs.rows(as_arrow(data))]
        for rows in blocks:
            for first in range(0, rows.num_rows, _ROWS_PER_BATCH):
                yield rows.cut(first, min(first + _ROWS_PER_BATCH, rows.num_rows))

    def _dataset_batches(self, dataset: Dataset) -> Iterator[SampleRows]:
        from heterps_hpc.dataset import ColumnSelection, Order, Reader

        wanted = ColumnSelection(
            slots=tuple(self._slots()),
            dense=bool(dataset.manifest.dense_columns),
            labels=False,
        )
        with Reader(dataset, Order(dataset, _ROWS_PER_BATCH, shuffle=False), wanted) as reader:
            for first in range(0, dataset.manifest.num_rows, _ROWS_PER_BATCH):
                batch = next(reader)
                last = min(first + _ROWS_PER_BATCH, dataset.manifest.num_rows)
                yield SampleRows(dict(batch.slots), batch.dense, ids=dataset.ids(first, last))

    def _slots(self) -> list[str]:
        names = [lookup.slot for layer in self._embeddings for lookup in layer.lookups]
        names += [
            name.removeprefix(LENGTH_PREFIX)
            for name in self.module.reads
            if name.startswith(LENGTH_PREFIX)
        ]
        return [name for name in dict.fromkeys(names) if self.model.negative(name) is None]


def load(run: Path | str, step: int | None = None) -> Predictor:
    """A run's newest checkpoint (or that of a step), ready to score rows in this process."""
    return Predictor.load(run, step)


def sigmoid(logits: Floats) -> Floats:
    """Logits as probabilities."""
    probabilities: Floats = expit(logits)
    return probabilities


def as_arrow(data: Any) -> Any:
    """A DataFrame, an Arrow table or columns by name as one Arrow table."""
    import pyarrow as pa

    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Mapping):
        try:
            return pa.table({name: pa.array(values) for name, values in data.items()})
        except pa.ArrowException as error:
            raise UserError(f"these columns are no table: {error}") from None
    if hasattr(data, "to_dict") and hasattr(data, "columns"):
        return pa.Table.from_pandas(data, preserve_index=False)
    raise UserError(
        f"cannot score a {type(data).__name__}; give a data set, a DataFrame, an Arrow table, or "
        "columns by name"
    )


def _inputs(job: Job, checkpoint: Checkpoint) -> Inputs:
    """What the model reads: from the checkpoint, else from the data it was trained on."""
    kept = checkpoint.manifest
    if kept.data_schema is not None and kept.key_recipe is not None:
        return Inputs.parse({"schema": kept.data_schema, **kept.key_recipe})
    manifest = job.data.train / MANIFEST_FILE
    if not manifest.is_file():
        raise UserError(
            f"{checkpoint.path}: an older checkpoint, which does not name its columns, and the "
            f"training data {job.data.train} is gone"
        )
    return Inputs.parse(DatasetManifest.load(manifest).inputs())
