"""The files of an unfinished preparation: what is done stays done when it is killed.

    OUT/.work/plan.json               source and options; another preparation is refused
    OUT/.work/F-S.json  F-S.npz       segment S of file F is finished, and its statistics
    OUT/.work/F-S.bad                 its bad rows
    OUT/.work/F-S.end                 the task that began there is finished
    OUT/.work/failed                  why the last attempt ended, if by an error

A segment's shards are renamed into place before its .json appears, and the .json is renamed
into place itself, so a shard counts only when it is whole.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.options import PARTS, PrepareOptions
from data_prep.source import ReadTask, Source
from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.dataset.manifest import MANIFEST_FILE, DatasetShard, Schema
from heterps_hpc.dataset.write.disk import disk_errors
from heterps_hpc.dataset.write.shard_writer import ShardStats
from heterps_hpc.dataset.write.sketch import Cardinality, KeySample
from heterps_hpc.errors import UserError

log = logging.getLogger(__name__)

WORK = ".work"


@dataclass(frozen=True)
class Done:
    """A finished segment: its shards by part."""

    file: int
    segment: int
    num_rows: int
    num_bad: int
    shards: dict[str, DatasetShard]


class Workplace:
    """Paths and markers in OUT/.work."""

    def __init__(self, out: Path) -> None:
        self.path = out / WORK

    def open(self, source: Source, options: PrepareOptions) -> None:
        """Begin, or continue the same preparation."""
        plan = json.dumps({"source": source.describe(), "options": options.content()}, indent=2)
        path = self.path / "plan.json"
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                write_atomically(path, plan)
        if path.read_text(encoding="utf-8") != plan:
            self._make_way(options)
            self.open(source, options)

    def _make_way(self, options: PrepareOptions) -> None:
        """Drop the remains of another preparation that failed, or of which nothing is finished."""
        if self.done() and not self._failure.exists():
            raise UserError(
                f"{self.path.parent}: holds an unfinished preparation of other input or with "
                "other options; give the same ones to continue it, or delete the directory"
            )
        log.warning("%s: starting again, as the preparation before failed", self.path.parent)
        for folder in (options.out, *(options.out / part for part in PARTS)):
            if not (folder / MANIFEST_FILE).exists():
                for shard in folder.glob("shard-*.h5"):
                    shard.unlink()
        self.remove()

    @property
    def _failure(self) -> Path:
        return self.path / "failed"

    def note_failure(self, error: UserError) -> None:
        """What ended this preparation: with other input or options, the next may start again."""
        with contextlib.suppress(OSError):
            self._failure.write_text(f"{error}\n", encoding="utf-8")

    def _name(self, file: int, segment: int, kind: str) -> Path:
        return self.path / f"{file:05d}-{segment:06d}.{kind}"

    def bad_rows_path(self, file: int, segment: int) -> Path:
        """Where the bad rows of a segment are kept aside."""
        return self._name(file, segment, "bad")

    def save(self, done: Done, stats: dict[str, ShardStats]) -> None:
        """Mark a segment as finished."""
        arrays = {}
        for part, found in stats.items():
            arrays.update({f"{part}/{key}": value for key, value in _arrays_of(found).items()})
        target = self._name(done.file, done.segment, "npz")
        with disk_errors(target):
            partial = target.with_name(f".{target.name}")
            with partial.open("wb") as file:
                np.savez(file, **arrays)
            partial.replace(target)
            record: dict[str, Any] = {
                "file": done.file,
                "segment": done.segment,
                "num_rows": done.num_rows,
                "num_bad": done.num_bad,
                "shards": {
                    part: shard.model_dump(mode="json") for part, shard in done.shards.items()
                },
            }
            write_atomically(self._name(done.file, done.segment, "json"), json.dumps(record))

    def end_task(self, task: ReadTask) -> None:
        """Mark a task as finished."""
        with disk_errors(self.path):
            self._name(task.file, task.segment, "end").touch()

    def is_ended(self, task: ReadTask) -> bool:
        """Whether all of a task's segments are finished."""
        return self._name(task.file, task.segment, "end").exists()

    def done(self) -> list[Done]:
        """Finished segments, in the order of the input."""
        found = []
        for path in sorted(self.path.glob("[0-9]*.json")):
            record = json.loads(path.read_text(encoding="utf-8"))
            record["shards"] = {
                part: DatasetShard.model_validate(shard) for part, shard in record["shards"].items()
            }
            found.append(Done(**record))
        return sorted(found, key=lambda done: (done.file, done.segment))

    def next_segment(self, task: ReadTask) -> int:
        """The first segment of a streaming task that is not finished."""
        numbers = [done.segment for done in self.done() if done.file == task.file]
        return max(numbers, default=task.segment - 1) + 1

    def stats(self, done: Done, part: str, schema: Schema) -> ShardStats:
        """The statistics of a segment's shard."""
        with np.load(self._name(done.file, done.segment, "npz")) as arrays:
            return _stats_of(arrays, part, schema)

    def remove(self) -> None:
        """Everything is in its place: forget how it got there."""
        shutil.rmtree(self.path)


def _arrays_of(stats: ShardStats) -> dict[str, Any]:
    arrays: dict[str, Any] = {
        "label_sums": stats.label_sums,
        "label_min": stats.label_min,
        "label_max": stats.label_max,
        "raw_bytes": stats.raw_bytes,
    }
    for place, slot in enumerate(stats.num_keys):
        cardinality, sample = stats.cardinality[slot], stats.samples[slot]
        sample.shrink()
        arrays[f"{place}/num_keys"] = stats.num_keys[slot]
        if slot in stats.num_missing:
            arrays[f"{place}/num_missing"] = stats.num_missing[slot]
        arrays[f"{place}/registers"] = cardinality.registers
        if cardinality.exact is not None:
            arrays[f"{place}/exact"] = cardinality.exact
        arrays[f"{place}/tags"] = sample.tags
        arrays[f"{place}/keys"] = sample.keys
    return arrays


def _stats_of(arrays: Any, part: str, schema: Schema) -> ShardStats:
    stats = ShardStats(
        {},
        {},
        {},
        {},
        arrays[f"{part}/label_sums"],
        arrays[f"{part}/label_min"],
        arrays[f"{part}/label_max"],
        int(arrays[f"{part}/raw_bytes"]),
    )
    for place, slot in enumerate(schema.slots):
        at = f"{part}/{place}"
        stats.num_keys[slot.name] = int(arrays[f"{at}/num_keys"])
        if f"{at}/num_missing" in arrays:
            stats.num_missing[slot.name] = int(arrays[f"{at}/num_missing"])
        cardinality = Cardinality()
        cardinality.registers = arrays[f"{at}/registers"]
        cardinality.exact = arrays.get(f"{at}/exact")
        stats.cardinality[slot.name] = cardinality
        sample = KeySample(0)
        sample.tags, sample.keys = arrays[f"{at}/tags"], arrays[f"{at}/keys"]
        stats.samples[slot.name] = sample
    return stats
