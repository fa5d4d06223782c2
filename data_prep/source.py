"""What a preparation reads: a source is cut into tasks, a task into segments, into blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data_prep.badrows import BadRow
from data_prep.text import Lines, compression_of, count_lines, num_lines
from heterps_hpc.dataset import SampleRows, Schema
from heterps_hpc.errors import UserError
from heterps_hpc.validation import nearest

Int64s = NDArray[np.int64]


def check_columns(path: Path, wanted: Iterable[str], columns: Sequence[str]) -> None:
    """Every column that is wanted is there, once: of two, readers would take either."""
    for name in wanted:
        if name not in columns:
            raise UserError(f"{path}: no column {name!r}; {nearest(name, list(columns))}")
        if columns.count(name) > 1:
            raise UserError(
                f"{path}: {columns.count(name)} columns are called {name!r}; rename all but one"
            )


@dataclass(frozen=True)
class ReadTask:
    """Work for one process: one segment of a file, or (`stream`) all from that one on."""

    file: int
    segment: int
    stream: bool


@dataclass(frozen=True)
class Block:
    """Some rows; `time` orders them for a split by time, `line` is the first one's number."""

    rows: SampleRows
    time: Int64s
    num_bytes: int
    bad: tuple[BadRow, ...] = ()
    line: int | None = None


@dataclass(frozen=True)
class SourceSegment:
    """One segment and its blocks, to be read before the next segment is asked for."""

    file: int
    number: int
    blocks: Iterator[Block]


class Source(Protocol):
    """Something that gives rows; it is sent to other processes, so it must pickle."""

    @property
    def schema(self) -> Schema:
        """Columns of the dataset."""

    @property
    def num_bytes(self) -> int:
        """Bytes on disk, for the progress bar."""

    def describe(self) -> dict[str, Any]:
        """What it is, for the manifest and to identify the source."""

    def tasks(self, segment_bytes: int) -> list[ReadTask]:
        """All of the work."""

    def segments(self, task: ReadTask, skip: int, segment_bytes: int) -> Iterator[SourceSegment]:
        """The segments of a task but the first `skip`."""

    def time_cuts(self, fractions: tuple[float, ...], segment_bytes: int) -> tuple[int, ...]:
        """The times below which those fractions of the rows lie."""

    def file_name(self, file: int) -> str:
        """For messages."""


def block_times(source: Source, segment_bytes: int) -> Iterator[Int64s]:
    """The times of all rows, block by block."""
    for task in source.tasks(segment_bytes):
        for segment in source.segments(task, 0, segment_bytes):
            yield from (block.time for block in segment.blocks)


class TextSource:
    """Base of sources made of text files; a subclass says how a block of lines is parsed."""

    def __init__(self, files: list[Path], has_header: bool = False) -> None:
        self.files = files
        self.has_header = has_header
        self._kinds = [compression_of(path) for path in files]
        self._sizes = [path.stat().st_size for path in files]
        self._text_sizes = list(self._sizes)

    @property
    def schema(self) -> Schema:
        """Columns of the dataset."""
        raise NotImplementedError

    def parse(self, text: bytes) -> tuple[SampleRows, Int64s | None] | None:
        """Rows of a block and their times; None if there is something odd in it."""
        raise NotImplementedError

    def sift(self, text: bytes) -> tuple[bytes, list[BadRow]]:
        """The good lines of a block that `parse` refused, and the bad ones."""
        raise NotImplementedError

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return sum(self._sizes)

    def describe(self) -> dict[str, Any]:
        """Files by name and size."""
        files = zip(self.files, self._sizes, strict=True)
        return {"files": [[path.name, size] for path, size in files]}

    def file_name(self, file: int) -> str:
        """For messages."""
        return str(self.files[file])

    def tasks(self, segment_bytes: int) -> list[ReadTask]:
        """A segment of a plain file each; a compressed file as a whole."""
        tasks = []
        for file, (kind, size) in enumerate(zip(self._kinds, self._sizes, strict=True)):
            if kind is not None:
                tasks.append(ReadTask(file, 0, stream=True))
            else:
                count = -(-size // segment_bytes)
                tasks.extend(ReadTask(file, number, stream=False) for number in range(count))
        return tasks

    def segments(self, task: ReadTask, skip: int, segment_bytes: int) -> Iterator[SourceSegment]:
        """The segments of a task but the first `skip`."""
        path = self.files[task.file]
        if not task.stream:
            if skip == 0:
                lines = Lines.at_segment(path, task.segment * segment_bytes)
                yield self._segment(lines, task.file, task.segment, segment_bytes)
                lines.close()
            return
        lines = Lines(path)
        for _ in lines.until(skip * segment_bytes):
            pass
        number = skip
        while True:
            before = lines.position
            yield self._segment(lines, task.file, number, segment_bytes)
            if lines.position == before:
                break  # nothing was left to read
            number = max(number + 1, lines.position // segment_bytes)
        lines.close()

    def _segment(self, lines: Lines, file: int, number: int, segment_bytes: int) -> SourceSegment:
        end = (number + 1) * segment_bytes
        return SourceSegment(file, number, self._blocks(lines, file, end))

    def _blocks(self, lines: Lines, file: int, end: int) -> Iterator[Block]:
        position = lines.position
        if position == 0 and self.has_header:
            lines.skip_line()
        read = lines.bytes_read
        passed: int | None = None  # lines before the block: counted from the first bad row on
        for offset, text in lines.until(end):
            block = self._block(file, offset, text)
            if block.bad and passed is None:
                passed = count_lines(lines.path, offset)
            line = None if passed is None else passed + 1
            yield Block(block.rows, block.time, lines.bytes_read - read, block.bad, line)
            read = lines.bytes_read
            if passed is not None:
                passed += num_lines(text)

    def _block(self, file: int, offset: int, text: bytes) -> Block:
        clean = text.replace(b"\r\n", b"\n") if b"\r" in text else text
        bad: list[BadRow] = []
        parsed = self.parse(clean)
        if parsed is None:
            good, bad = self.sift(clean)
            parsed = self.parse(good)
            if parsed is None:
                raise AssertionError(
                    f"{self.files[file]}: valid lines near byte {offset} are refused"
                )
        rows, time = parsed
        if time is None:  # the place in the files stands for the time
            start = sum(self._text_sizes[:file]) + offset
            time = start + np.arange(rows.num_rows) * len(text) // max(rows.num_rows, 1)
        return Block(rows, time, len(text), tuple(bad))

    def time_cuts(self, fractions: tuple[float, ...], segment_bytes: int) -> tuple[int, ...]:
        """By place: fractions of the bytes; compressed files are read once to know their size."""
        for file, kind in enumerate(self._kinds):
            if kind is not None:
                self._text_sizes[file] = _text_size(self.files[file])
        total = sum(self._text_sizes)
        return tuple(int(total * fraction) for fraction in fractions)


def _text_size(path: Path) -> int:
    lines = Lines(path)
    for _ in lines.until(None):
        pass
    lines.close()
    return lines.position
