"""From a source to datasets: several processes, bounded memory, resumable at every segment."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.badrows import BadRowLog
from data_prep.hashing import missing_key
from data_prep.keycounts import KeyCounts, KeyPolicy
from data_prep.options import PARTS, PrepareOptions
from data_prep.pool import Meter, run_tasks
from data_prep.source import ReadTask, Source, SourceSegment
from data_prep.split import Split, cut_fractions
from data_prep.workplace import Done, Workplace
from heterps_hpc.counter_rng import seed_of
from heterps_hpc.dataset import DatasetManifest
from heterps_hpc.dataset.write.shard_writer import DatasetShardWriter, ShardOptions, ShardStats
from heterps_hpc.dataset.write.writer import finish, merge_stats, refuse_existing
from heterps_hpc.errors import UserError

log = logging.getLogger(__name__)

KeyCountsBySlot = dict[str, KeyCounts]


@dataclass(frozen=True)
class Preparation:
    """Everything a process needs to work on a task."""

    source: Source
    options: PrepareOptions
    split: Split
    policy: KeyPolicy

    def shard_options(self) -> ShardOptions:
        """What the shards have in common."""
        options = self.options
        missing = {
            slot.name: missing_key(slot.name)
            for slot in self.source.schema.slots
            if slot.kind == "one" and options.max_keys is None  # which folds the key as well
        }
        return ShardOptions(
            self.source.schema, options.block_rows, options.compression, options.seed, missing
        )


def prepare(source: Source, options: PrepareOptions) -> dict[str, DatasetManifest]:
    """Write the dataset, or one for each part of the split; continue where a run was killed."""
    for part in PARTS:
        refuse_existing(options.part_path(part))
    workplace = Workplace(options.out)
    workplace.open(source, options)
    try:
        return _prepare(source, options, workplace)
    except UserError as error:
        workplace.note_failure(error)
        raise


def _prepare(
    source: Source, options: PrepareOptions, workplace: Workplace
) -> dict[str, DatasetManifest]:
    policy = _key_policy(source, options, workplace)
    cuts: tuple[int, ...] = ()
    if options.split == "time":
        cuts = source.time_cuts(cut_fractions(options), options.segment_bytes)
    preparation = Preparation(source, options, Split.of(options, cuts), policy)
    tasks = [task for task in source.tasks(options.segment_bytes) if not workplace.is_ended(task)]
    bad = sum(done.num_bad for done in workplace.done())
    meter = Meter(source.num_bytes, "writing", bad)
    for _ in run_tasks(write_task, preparation, tasks, options, meter):
        pass
    return _finish(source, options, workplace)


def write_task(preparation: Preparation, task: ReadTask, meter: Meter) -> None:
    """Write the shards of one task's unfinished segments."""
    options = preparation.options
    workplace = Workplace(options.out)
    skip = workplace.next_segment(task) if task.stream else 0
    for segment in preparation.source.segments(task, skip, options.segment_bytes):
        _write_segment(preparation, segment, workplace, meter)
    workplace.end_task(task)


def _write_segment(
    preparation: Preparation, segment: SourceSegment, workplace: Workplace, meter: Meter
) -> None:
    options = preparation.options
    writers: dict[str, DatasetShardWriter] = {}
    name = f"shard-{segment.file:05d}-{segment.number:06d}.h5"
    bad_path = workplace.bad_rows_path(segment.file, segment.number)
    bad = BadRowLog(options, preparation.source.file_name(segment.file), bad_path, meter)
    num_rows = 0
    try:
        for block in segment.blocks:
            bad.take(block)
            rows = preparation.policy.apply(block.rows)
            split = preparation.split.parts(segment.file, segment.number, num_rows, block.time)
            for part, chosen in split:
                if part not in writers:
                    number = seed_of(PARTS.index(part), segment.file, segment.number)
                    path = options.part_path(part) / name
                    writers[part] = DatasetShardWriter(path, number, preparation.shard_options())
                writers[part].append(rows if chosen is None else rows.pick(chosen))
            num_rows += rows.num_rows
            meter.add(rows.num_rows, block.num_bytes)
        shards = {part: writer.close() for part, writer in writers.items() if writer.num_rows}
        stats = {part: writers[part].stats for part in shards}
    finally:
        bad.close()
        for writer in writers.values():
            writer.abort()
    workplace.save(Done(segment.file, segment.number, num_rows, bad.count, shards), stats)


def _finish(
    source: Source, options: PrepareOptions, workplace: Workplace
) -> dict[str, DatasetManifest]:
    finished = workplace.done()
    manifests = {}
    shard_options = ShardOptions(
        source.schema, options.block_rows, options.compression, options.seed
    )
    num_bad = sum(done.num_bad for done in finished)
    made = {**source.describe(), "options": options.content(), "num_bad_rows": num_bad}
    if not any(done.shards for done in finished):
        raise UserError(f"{options.out}: the input has no valid row; check it")
    _collect_bad_rows(workplace.path, options.out)
    for part in PARTS:
        chosen = [done for done in finished if part in done.shards]
        if not chosen:
            continue
        stats: ShardStats | None = None
        for done in chosen:
            found = workplace.stats(done, part, source.schema)
            stats = found if stats is None else merge_stats(stats, found)
        path = options.part_path(part)
        name = options.name or options.out.name
        manifests[part] = finish(
            path,
            name if options.split == "none" else f"{name}-{part}",
            shard_options,
            [done.shards[part] for done in chosen],
            stats,
            made,
        )
    workplace.remove()
    return manifests


def _collect_bad_rows(work: Path, out: Path) -> None:
    logs = [path for path in sorted(work.glob("*.bad")) if path.stat().st_size]
    if not logs:
        return
    partial = out / ".bad_rows.txt"
    with partial.open("wb") as target:
        for each in logs:
            with each.open("rb") as source:
                shutil.copyfileobj(source, target)
    partial.replace(out / "bad_rows.txt")
    log.warning("bad rows were left out; they are in %s", out / "bad_rows.txt")


def _key_policy(source: Source, options: PrepareOptions, workplace: Workplace) -> KeyPolicy:
    """Count the keys first, if there is a threshold; the result is kept for a later run."""
    if options.min_count == 1:
        return KeyPolicy(options.max_keys)
    path = workplace.path / "frequent.npz"
    slots = [slot.name for slot in source.schema.slots]
    if not path.exists():
        counts = _empty_counts(source, options)
        tasks = source.tasks(options.segment_bytes)
        nothing = Preparation(source, options, Split.of(options, ()), KeyPolicy())
        for task_counts in run_tasks(
            count_task, nothing, tasks, options, Meter(source.num_bytes, "counting")
        ):
            for slot, found in task_counts.items():
                counts[slot].merge(found)
        _save_frequent(path, counts, options.min_count)
    with np.load(path) as arrays:
        frequent = {slot: arrays[str(place)] for place, slot in enumerate(slots)}
    return KeyPolicy(options.max_keys, frequent)


def _save_frequent(path: Path, counts: dict[str, KeyCounts], min_count: int) -> None:
    for slot, found in counts.items():
        if found.forgotten:
            log.warning(
                "slot %s: counts did not fit; keys seen up to %d times were forgotten on the way, "
                "raise --count-memory-mb for exact ones",
                slot,
                found.forgotten,
            )
    arrays = {str(place): found.frequent(min_count) for place, found in enumerate(counts.values())}
    partial = path.with_name(f".{path.name}")
    with partial.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    partial.replace(path)


def count_task(preparation: Preparation, task: ReadTask, meter: Meter) -> KeyCountsBySlot:
    """How often each key of a task occurs."""
    counts = _empty_counts(preparation.source, preparation.options)
    segment_bytes = preparation.options.segment_bytes
    for segment in preparation.source.segments(task, 0, segment_bytes):
        for block in segment.blocks:
            for slot, keys in block.rows.slots.items():
                counts[slot].add(keys.keys)
            meter.add(block.rows.num_rows, block.num_bytes)
    for found in counts.values():
        found.settle()
    return counts


def _empty_counts(source: Source, options: PrepareOptions) -> KeyCountsBySlot:
    # each process has its counts, and the one that merges them
    holders = options.processes + 1 if options.processes > 1 else 2
    budget = options.count_memory_mb * (1 << 20) // holders // max(len(source.schema.slots), 1)
    return {slot.name: KeyCounts(budget) for slot in source.schema.slots}
