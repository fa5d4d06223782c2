"""Which rows of a batch belong to which micro-batch and replica: the one rule that all ranks share.

A batch of n rows is cut into m micro-batches, each micro-batch into k replicas, always into
contiguous ranges whose lengths differ by at most one. Every rank computes the same ranges from
(n, m, k) alone, so that none has to be sent.
"""

from __future__ import annotations

Range = tuple[int, int]


def split_rows(num_rows: int, num_parts: int) -> list[Range]:
    """Contiguous ranges [first, last) that cover num_rows; the longer ones come first."""
    if num_rows < 0 or num_parts < 1:
        raise ValueError(f"cannot split {num_rows} rows into {num_parts} parts")
    short, extra = divmod(num_rows, num_parts)
    ranges = []
    first = 0
    for part in range(num_parts):
        last = first + short + (1 if part < extra else 0)
        ranges.append((first, last))
        first = last
    return ranges


def micro_batch_ranges(num_rows: int, num_micro_batches: int) -> list[Range]:
    """The rows of each micro-batch within the batch."""
    return split_rows(num_rows, num_micro_batches)


def replica_ranges(
    num_rows: int, num_micro_batches: int, num_replicas: int, replica: int
) -> list[Range]:
    """For each micro-batch, the rows (within the batch) that one replica computes."""
    ranges = []
    for first, last in micro_batch_ranges(num_rows, num_micro_batches):
        lo, hi = split_rows(last - first, num_replicas)[replica]
        ranges.append((first + lo, first + hi))
    return ranges


def overlap(left: Range, right: Range) -> Range:
    """The rows common to two ranges; an empty range is (x, x)."""
    first = max(left[0], right[0])
    return first, max(first, min(left[1], right[1]))
