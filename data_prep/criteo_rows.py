"""Criteo's tab-separated rows: label, 13 integers, 26 categories of 8 hexadecimal digits.

Well-formed blocks go the fast way (vectorised, no Python per row); a block with anything odd in
it is looked at line by line, which finds the odd lines and says what is wrong with them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep import swar
from data_prep.badrows import BadRow
from data_prep.hashing import missing_key, slot_base
from heterps_hpc.counter_rng import mix64
from heterps_hpc.dataset import Keys, SampleRows, Schema, SlotSpec

NUM_INTEGERS = 13
NUM_CATEGORIES = 26
NUM_FIELDS = 1 + NUM_INTEGERS + NUM_CATEGORIES
INTEGERS = tuple(f"I{number}" for number in range(1, NUM_INTEGERS + 1))
CATEGORIES = tuple(f"C{number}" for number in range(1, NUM_CATEGORIES + 1))
SCHEMA = Schema(
    slots=tuple(SlotSpec(name=name) for name in CATEGORIES),
    dense_columns=INTEGERS,
    labels=("click",),
)

_BASES = np.array([[slot_base(name)] for name in CATEGORIES], np.uint64)
_MISSING = np.array([missing_key(name) for name in CATEGORIES], np.uint64)
_EIGHT_ZEROS = np.uint64(0x3030303030303030)
_TAB, _NEWLINE, _MINUS, _ZERO = 9, 10, 45, 48

_LINE = re.compile(
    rb"[01](?:\t(?:-?[0-9]{1,18})?){13}(?:\t(?:[0-9a-f]{8})?){26}",
)
_INTEGER = re.compile(rb"-?[0-9]{1,18}")
_CATEGORY = re.compile(rb"[0-9a-f]{8}")


@dataclass(frozen=True)
class Fields:
    """Where the fields of a block are: starts and ends, one row per field."""

    buffer: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def parse(text: bytes) -> SampleRows | None:
    """Rows of a block of whole lines; None if any line of it is not as it should be."""
    fields = _find_fields(text)
    if fields is None:
        return None
    labels = _labels(fields)
    dense = _integers(fields)
    slots = _categories(fields)
    if labels is None or dense is None or slots is None:
        return None
    return SampleRows(slots, dense, labels)


def _find_fields(text: bytes) -> Fields | None:
    buffer, inside = swar.padded(text)
    separators = np.flatnonzero((inside - np.uint8(_TAB)) < 2)  # tab or newline
    num_rows = int(np.count_nonzero(inside == _NEWLINE))
    if len(separators) != num_rows * NUM_FIELDS:
        return None
    ends = separators.reshape(num_rows, NUM_FIELDS)
    if (inside[ends[:, -1]] != _NEWLINE).any():
        return None
    ends = np.ascontiguousarray(ends.T)
    ends += swar.PADDING
    starts = np.empty_like(ends)
    starts[1:] = ends[:-1]
    starts[0, 1:] = ends[-1, :-1]
    starts[0, :1] = swar.PADDING - 1
    starts += 1
    return Fields(buffer, starts, ends)


def _labels(fields: Fields) -> NDArray[np.float32] | None:
    label = fields.buffer[fields.starts[0]] - np.uint8(_ZERO)
    if (fields.ends[0] - fields.starts[0] != 1).any() or (label > 1).any():
        return None
    column: NDArray[np.float32] = label.astype(np.float32)[:, None]
    return column


def _integers(fields: Fields) -> NDArray[np.float32] | None:
    """log(1 + x), with negative and missing values as 0."""
    starts = fields.starts[1 : 1 + NUM_INTEGERS]
    ends = fields.ends[1 : 1 + NUM_INTEGERS]
    num_digits = ends - starts
    negative = (fields.buffer[starts] == _MINUS) & (num_digits > 0)
    num_digits -= negative
    if (negative & (num_digits == 0)).any():
        return None
    long = num_digits > 8
    if long.any():
        num_digits[long] = 0
    values, valid = swar.parse_digits(swar.words(fields.buffer)[ends - 8], num_digits)
    if not valid:
        return None
    if long.any():
        for place in zip(*np.nonzero(long), strict=True):
            text = fields.buffer[starts[place] : ends[place]].tobytes()
            if not _INTEGER.fullmatch(text):
                return None
            values[place] = int(text)
    values[negative] = 0
    return log_dense(values)


def log_dense(values: NDArray[np.int64]) -> NDArray[np.float32]:
    """[fields, rows] of counts to the matrix of log(1 + x)."""
    dense = np.ascontiguousarray(values.T.astype(np.float32))
    dense += 1
    return np.log(dense, out=dense)


def _categories(fields: Fields) -> dict[str, Keys] | None:
    starts = fields.starts[1 + NUM_INTEGERS :]
    lengths = fields.ends[1 + NUM_INTEGERS :] - starts
    missing = lengths == 0
    if (~missing & (lengths != 8)).any():
        return None
    words = swar.words(fields.buffer)[starts]
    words[missing] = _EIGHT_ZEROS
    values, valid = swar.parse_hex(words)
    if not valid:
        return None
    values += _BASES
    keys = mix64(values)
    where_slot, where_row = np.nonzero(missing)
    keys[where_slot, where_row] = _MISSING[where_slot]
    return {name: Keys(row) for name, row in zip(CATEGORIES, keys, strict=True)}


def sift(text: bytes) -> tuple[bytes, list[BadRow]]:
    """The good lines of a block, and what is wrong with the others."""
    good, bad = [], []
    for number, line in enumerate(text.split(b"\n")[:-1]):
        if _LINE.fullmatch(line):
            good.append(line)
        elif line:  # an empty line says nothing, right or wrong
            bad.append(diagnose(number, line))
    return b"".join(line + b"\n" for line in good), bad


def diagnose(number: int, line: bytes) -> BadRow:
    """Say which field of a bad line is wrong, and what was expected."""
    parts = line.split(b"\t")
    if len(parts) != NUM_FIELDS:
        return BadRow(
            number,
            line,
            None,
            f"{NUM_FIELDS} tab-separated fields (label, 13 integers, 26 categories)",
            f"{len(parts)} fields",
        )
    for place, part in enumerate(parts):
        if place == 0:
            expected, good = "a label, 0 or 1", part in (b"0", b"1")
        elif place <= NUM_INTEGERS:
            expected = "an integer or nothing"
            good = not part or _INTEGER.fullmatch(part) is not None
        else:
            expected = "8 lower-case hexadecimal digits or nothing"
            good = not part or _CATEGORY.fullmatch(part) is not None
        if not good:
            name = ("label", *INTEGERS, *CATEGORIES)[place]
            return BadRow(number, line, f"{place + 1} ({name})", expected, repr(part[:40]))
    raise AssertionError(f"line {line[:200]!r} was refused without a reason")
