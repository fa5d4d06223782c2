"""PMI-1 between a rank and Slurm, in messages that Slurm can read.

At its start MPICH publishes the rank's network address by PMI, cut into pieces of the length that
the server announces. Slurm announces 1024 bytes for a value, but reads 1024 bytes for the whole
message: a full piece is torn, and the start fails ("mpi/pmi2: value not properly terminated in
client request") or hangs. Whether a piece is full depends on the number of network interfaces, and
on chance: MPICH 5 with UCX always sends 4096 bytes, the address and whatever follows it in memory.
So a small process passes messages on in both directions and announces less.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
from collections.abc import Mapping

MAX_VALUE_BYTES = 900  # leaves room for `cmd=put kvsname=… key=… value=` in 1024 bytes
_IGNORED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # meant for the rank
_CHUNK = 1 << 16


def relay_pmi(environment: Mapping[str, str]) -> int | None:
    """Put the relay between this process and Slurm's PMI, before MPI starts; its process, if any.

    Other process managers, such as MPICH's own, mean what they announce.
    """
    descriptor = environment.get("PMI_FD", "")
    if not descriptor.isdigit() or "SLURM_STEP_ID" not in environment:
        return None
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            server = socket.socket(fileno=int(descriptor))
            for number in _IGNORED:
                signal.signal(number, signal.SIG_IGN)
            for stream in range(3):  # srun waits until nobody holds the rank's output
                os.close(stream)
            relay(theirs, server)
        finally:
            os._exit(0)
    theirs.close()
    os.dup2(ours.fileno(), int(descriptor))
    ours.close()
    return pid


def relay(client: socket.socket, server: socket.socket) -> None:
    """Pass everything on until one side ends; only the server's limits are changed."""
    waiting = b""  # the beginning of a line of the server
    while True:
        readable, _, _ = select.select([client, server], [], [])
        with contextlib.suppress(ConnectionError):
            if client in readable:
                data = client.recv(_CHUNK)
                if not data:
                    return
                server.sendall(data)
            if server in readable:
                data = server.recv(_CHUNK)
                if not data:
                    client.sendall(waiting)
                    return
                *lines, waiting = (waiting + data).split(b"\n")
                client.sendall(b"".join(_announce_less(line) + b"\n" for line in lines))
            continue
        return


def _announce_less(line: bytes) -> bytes:
    if not line.startswith(b"cmd=maxes "):
        return line
    limit = re.search(rb"\bvallen_max=(\d+)", line)
    if limit is None or int(limit[1]) <= MAX_VALUE_BYTES:
        return line
    return line[: limit.start(1)] + str(MAX_VALUE_BYTES).encode() + line[limit.end(1) :]
