"""Reads every byte of a checkpoint and compares it with its checksum."""

from __future__ import annotations

from dataclasses import dataclass, field

from heterps_hpc.checkpoint.shardreader import DamagedCheckpoint, ShardReader
from heterps_hpc.checkpoint.store import Checkpoint

_BLOCK_BYTES = 1 << 23


@dataclass
class Findings:
    """What a check of all bytes found."""

    num_bytes: int = 0
    num_checksums: int = 0
    problems: list[str] = field(default_factory=list)


def verify(checkpoint: Checkpoint) -> Findings:
    """Check all shards; every damaged one is named, not only the first."""
    findings = Findings()
    for shard in checkpoint.manifest.shards:
        try:
            with ShardReader(checkpoint.path / shard.file, shard) as reader:
                findings.num_checksums += 1
                for array in shard.arrays:
                    max_rows = max(1, _BLOCK_BYTES // max(1, array.row_bytes))
                    for segment in array.segments:
                        for _ in reader.blocks(array, segment, max_rows):
                            pass
                        findings.num_checksums += 1
            findings.num_bytes += shard.num_bytes
        except DamagedCheckpoint as error:
            findings.problems.append(str(error))
    findings.problems += _missing_partitions(checkpoint)
    return findings


def check_shards(checkpoint: Checkpoint) -> None:
    """UserError unless all shards are there, with the size and structure that they had.

    A moment's work, before ranks wait in a queue to find it out.
    """
    for shard in checkpoint.manifest.shards:
        ShardReader(checkpoint.path / shard.file, shard).close()


def _missing_partitions(checkpoint: Checkpoint) -> list[str]:
    """Every partition of every table must be there exactly once."""
    manifest = checkpoint.manifest
    problems = []
    for table in manifest.tables:
        held = [
            segment.partition
            for shard in manifest.shards
            for array in shard.arrays
            if (array.kind, array.name, array.column) == ("table", table, "keys")
            for segment in array.segments
        ]
        if sorted(held) != list(range(manifest.num_partitions)):
            problems.append(
                f"{checkpoint.path}: table {table!r} has {len(set(held))} of its "
                f"{manifest.num_partitions} partitions, {len(held) - len(set(held))} of them twice"
            )
    return problems
