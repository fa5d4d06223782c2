"""How a command ends: mistakes of the user and stops end in one line, not in a traceback."""

from __future__ import annotations

import errno
import io
import logging
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TextIO

from heterps_hpc.errors import StartFailed, UserError
from heterps_hpc.exit_codes import ExitCode
from heterps_hpc.launch.stop_requests import StopRequested


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Log to standard error, and exit with a line and a code where the block raises."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # in a POSIX locale no "→" may end a report
            stream.reconfigure(errors="replace")
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[_StandardError()])
    try:
        _check_working_directory()
        yield
    except UserError as error:
        _end(ExitCode.USER_ERROR, str(error))
    except StartFailed as failure:
        _end(failure.code, str(failure))
    except StopRequested as stop:
        _end(ExitCode.STOPPED, str(stop))
    except MemoryError:
        _end(ExitCode.USER_ERROR, f"out of memory{_memory_limit()}")
    except RuntimeError as error:
        if str(error) != "can't start new thread":
            raise
        _end(
            ExitCode.USER_ERROR,
            f"no further thread can be started{_memory_limit()}; the limit may also be that of "
            "processes (`ulimit -u`)",
        )
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if error.filename is None and not full:
            raise  # not about a file that the user could look at
        remedy = "make space and run it again" if full else "check this path and its permissions"
        what = "the disk" if error.filename is None else error.filename
        _end(ExitCode.USER_ERROR, f"{what}: {error.strerror}; {remedy}")


def _memory_limit() -> str:
    """Login nodes often give each process little."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return "; use a node with more of it"
    return f": this process may take {limit >> 20:,} MB; raise `ulimit -v`, or use another node"


def _check_working_directory() -> None:
    """Neither relative paths nor MPI and MKL work where someone has deleted it."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError(
            "the working directory was deleted; `cd` to one that is there, or to the same path "
            "again if it was made anew"
        ) from None


def _end(code: ExitCode, text: str) -> NoReturn:
    for line in text.splitlines():
        sys.stderr.write(f"heterps: {_printable(line)}\n")
    sys.exit(int(code))


def _printable(line: str) -> str:
    """A name from a user's file must not steer the terminal."""
    shown = (c if c.isprintable() else repr(c)[1:-1] for c in line)
    return "".join(shown)


class _StandardError(logging.StreamHandler[TextIO]):
    """Logs to what is standard error at that moment: a live line draws itself below."""

    @property
    def stream(self) -> TextIO:
        """Standard error."""
        return sys.stderr

    @stream.setter
    def stream(self, _: TextIO) -> None:
        """It is always standard error."""
