"""Text files cut into segments and blocks of whole lines, compressed or not.

A segment is the lines that begin in the k-th stretch of so many bytes of a file's text. The rule
is the same for plain and compressed files, so both give the same dataset; only a plain file can
be entered at any segment, a compressed one is read from its beginning.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from heterps_hpc.errors import UserError

BLOCK_BYTES = 1 << 19
_MAX_LINE_BYTES = 1 << 24
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\xfd7zXZ": "xz"}


def compression_of(path: Path) -> str | None:
    """How a file is compressed, by its first bytes; None for plain text."""
    head = _first_bytes(path)
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    return None


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory; give the files in it") from None
    except PermissionError:
        raise UserError(f"{path}: no permission to read it") from None
    if not head:
        raise UserError(f"{path}: the file is empty; expected rows of text")
    return head


def _decompressed(kind: str | None, file: IO[bytes]) -> Any:
    """The text inside an open file; pyarrow's streams act like Python's."""
    if kind == "gzip":
        return gzip.GzipFile(fileobj=file)
    if kind == "bz2":
        return bz2.BZ2File(file)
    if kind == "xz":
        return lzma.LZMAFile(file)
    if kind == "zstd":
        return pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")
    return file


class Lines:
    """Whole lines from a file; `position` is where in its text the next one begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
        self._file = path.open("rb")
        self._stream = _decompressed(compression_of(path), self._file)
        self._rest = b""

    @classmethod
    def at_segment(cls, path: Path, first_byte: int) -> Lines:
        """A plain file, from the first line that begins at or after the given byte."""
        lines = cls(path)
        if first_byte > 0:
            lines.position = first_byte - 1  # a line may begin just after that one
            lines._stream.seek(lines.position)
            lines.skip_line()
        return lines

    def skip_line(self) -> bytes:
        """Pass over one line (or the rest of one) and return it."""
        while b"\n" not in self._rest:
            self._refuse_endless(self._rest)
            more = self._read()
            if not more:
                break
            self._rest += more
        line, found, self._rest = self._rest.partition(b"\n")
        self.position += len(line) + len(found)
        return line

    def until(self, end: int | None) -> Iterator[tuple[int, bytes]]:
        """(position, lines) of the lines that begin before `end`; None: to the end of the file."""
        while end is None or self.position < end:
            more = self._read()
            text = self._rest + more
            if not text:
                return
            cut = _cut(text, None if end is None else end - 1 - self.position)
            if not more:
                cut = cut or len(text)
            if cut == 0:
                self._refuse_endless(text)
                self._rest = text
                continue
            block, self._rest = text[:cut], text[cut:]
            position = self.position
            self.position += cut
            yield position, block if block.endswith(b"\n") else block + b"\n"

    @property
    def bytes_read(self) -> int:
        """Of the file on disk."""
        return self._file.tell()

    def _refuse_endless(self, line: bytes) -> None:
        if len(line) > _MAX_LINE_BYTES:
            raise UserError(
                f"{self.path}: no end of line in {len(line)} bytes from byte {self.position} on; "
                "expected rows of text"
            )

    def _read(self) -> bytes:
        try:
            text: bytes = self._stream.read(BLOCK_BYTES)
            return text
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            raise UserError(
                f"{self.path}: cannot be decompressed after {self.position} bytes of text "
                f"({error}); the file is cut off or damaged: fetch it again"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        self._file.close()


def _cut(text: bytes, last_byte: int | None) -> int:
    """Length of the whole lines; where `last_byte` is given, only up to the line that holds it."""
    if last_byte is not None and len(text) > last_byte:
        return text.find(b"\n", last_byte) + 1
    return text.rfind(b"\n") + 1


def num_lines(text: bytes) -> int:
    """Line ends in a text; numpy counts bytes several times faster than `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord("\n")))


def count_lines(path: Path, end: int) -> int:
    """Lines that begin before byte `end` of the text."""
    total = 0
    lines = Lines(path)
    for _, block in lines.until(end):
        total += num_lines(block)
    lines.close()
    return total
