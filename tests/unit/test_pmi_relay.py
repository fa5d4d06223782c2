"""Slurm announces longer PMI values than it can read; the relay announces what it can."""

import os
import socket
import subprocess
import sys
import threading

import pytest

from heterps_hpc.runtime.pmi_relay import MAX_VALUE_BYTES, relay, relay_pmi

RANK = """
import os, socket
from heterps_hpc.runtime.pmi_relay import relay_pmi
pid = relay_pmi(os.environ)
pmi = socket.socket(fileno=int(os.environ["PMI_FD"]))
pmi.sendall(b"cmd=get_maxes\\n")
print(pmi.makefile().readline().strip())
pmi.close()
assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_full_value_fits_into_what_slurm_reads() -> None:
    command = f"cmd=put kvsname={2**31}.{2**31} key=-allgather-shm-10-{2**20}-seg-99/99 value="
    assert len(command) + MAX_VALUE_BYTES + 1 <= 1024


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (
            "cmd=maxes kvsname_max=256 keylen_max=256 vallen_max=1024\n",
            f"cmd=maxes kvsname_max=256 keylen_max=256 vallen_max={MAX_VALUE_BYTES}\n",
        ),
        ("cmd=maxes vallen_max=512 x=1\n", "cmd=maxes vallen_max=512 x=1\n"),
        ("cmd=get_result value=vallen_max=1024\n", "cmd=get_result value=vallen_max=1024\n"),
    ],
)
def test_only_limits_are_changed(sent: str, received: str) -> None:
    (rank, client), (slurm, server) = socket.socketpair(), socket.socketpair()
    thread = threading.Thread(target=relay, args=(client, server))
    thread.start()
    with rank, client, slurm, server:
        rank.sendall(b"cmd=get_maxes\n")
        assert slurm.recv(100) == b"cmd=get_maxes\n"
        for byte in sent.encode():  # however the kernel cuts it
            slurm.sendall(bytes([byte]))
        assert rank.makefile().readline() == received
        rank.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        assert not thread.is_alive()


def test_a_rank_has_the_relay_at_its_descriptor() -> None:
    slurm, rank = socket.socketpair()
    with slurm:
        process = subprocess.Popen(
            [sys.executable, "-c", RANK],
            env={**os.environ, "PMI_FD": str(rank.fileno()), "SLURM_STEP_ID": "0"},
            pass_fds=[rank.fileno()],
            stdout=subprocess.PIPE,
            text=True,
        )
        rank.close()
        slurm.settimeout(60)
        assert slurm.recv(100) == b"cmd=get_maxes\n"
        slurm.sendall(b"cmd=maxes vallen_max=1024\n")
        printed, _ = process.communicate(timeout=60)
        assert printed == f"cmd=maxes vallen_max={MAX_VALUE_BYTES}\n"
        assert slurm.recv(100) == b""  # nobody holds the connection any more


@pytest.mark.parametrize("variables", [{}, {"PMI_FD": "7"}, {"SLURM_STEP_ID": "0"}])
def test_other_process_managers_are_left_alone(variables: dict[str, str]) -> None:
    assert relay_pmi(variables) is None
