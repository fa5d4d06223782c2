"""Parses fields of text eight bytes at a time: a 64-bit word holds a whole field.

numpy applies each step to all fields of a block at once, so a value costs a few dozen machine
instructions and no Python. Words are little-endian: the first character is the lowest byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]

PADDING = 8  # readable bytes that must lie before and after the text


def _word(byte: int) -> np.uint64:
    return np.uint64(byte * 0x0101010101010101)


_ONES, _LOW, _HIGH = _word(0x01), _word(0x0F), _word(0xF0)
_ZERO_DIGIT, _SIX, _MSB = _word(0x30), _word(0x06), _word(0x80)
# the highest d bytes of a word, for d = 0 .. 8
_TOP_BYTES = np.array([(2**64 - 1) ^ ((1 << (64 - 8 * d)) - 1) for d in range(9)], np.uint64)


def words(text: NDArray[np.uint8]) -> UInt64s:
    """The 8 bytes that start at each byte of the text, without a copy."""
    return np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))


def parse_hex(field_words: UInt64s) -> tuple[UInt64s, bool]:
    """Values of 8-digit lower-case hexadecimal fields, and whether all of them are that."""
    word = field_words
    letter = word >> np.uint64(6)
    letter &= _ONES
    digit = word & _LOW
    letter *= np.uint64(9)
    digit += letter
    # writing the digits out again must give the same text
    again = digit + _SIX
    again >>= np.uint64(4)
    again &= _ONES
    again *= np.uint64(0x27)
    again += digit
    again += _ZERO_DIGIT
    again ^= word
    again |= digit & _HIGH  # 'g' and beyond
    valid = not again.any()
    # eight digits, a byte each, the most significant lowest: pairs, then fours, then all
    digit = (digit << np.uint64(4)) | (digit >> np.uint64(8))
    digit &= np.uint64(0x00FF00FF00FF00FF)
    digit = (digit << np.uint64(8)) | (digit >> np.uint64(16))
    digit &= np.uint64(0x0000FFFF0000FFFF)
    value = (digit << np.uint64(16)) | (digit >> np.uint64(32))
    value &= np.uint64(0xFFFFFFFF)
    return value, valid


def parse_digits(last_words: UInt64s, num_digits: Int64s) -> tuple[Int64s, bool]:
    """Values of decimal fields of 0 to 8 digits, given the 8 bytes up to the end of each."""
    digit = last_words ^ _ZERO_DIGIT
    digit &= _TOP_BYTES[num_digits]
    over = digit + _word(0x76)
    over |= digit
    over &= _MSB
    valid = not over.any()
    pair = digit >> np.uint64(8)
    digit *= np.uint64(10)
    digit += pair
    upper = digit >> np.uint64(16)
    digit &= np.uint64(0x000000FF000000FF)
    digit *= np.uint64(0x000F424000000064)
    upper &= np.uint64(0x000000FF000000FF)
    upper *= np.uint64(0x0000271000000001)
    digit += upper
    digit >>= np.uint64(32)
    return digit.view(np.int64), valid


def padded(text: bytes) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """The text with padding on both sides, and the text itself inside it."""
    buffer = np.zeros(len(text) + 2 * PADDING, np.uint8)
    inside = buffer[PADDING : PADDING + len(text)]
    inside[:] = np.frombuffer(text, np.uint8)
    return buffer, inside
