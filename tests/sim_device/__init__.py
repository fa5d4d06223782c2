"""A simulated accelerator, `sim`, written in Python: to test device code without a device.

Two devices, `sim:0` and `sim:1`, each with memory of its own. Every operator runs the host's kernel
on private host tensors, so that results equal the host's bit for bit; but nothing is shared with
the host, operands on different devices are refused, copies marked `non_blocking` are done late,
streams see each other's copies only after a wait, memory has a limit, and everything that moves
data or stops the host is counted. Kernels are not late, but their order is checked (`order.py`):
one that uses another stream's memory without a wait is refused. So a missing wait, a missing
`record_stream`, or a buffer that is used again too early gives wrong numbers or an error, every
time.

It loads like any device plugin of torch, by an entry point of the group `torch.backends`: put
`tests/sim_device/plugin` and the repository on PYTHONPATH (`environment()` below). A process cannot
get rid of it again, so tests of devices run in processes of their own.

What it cannot do: no LSTM, no sparse tensors, no generators on the device; a collective ignores
streams; there is no speed model (a kernel takes a microsecond). Autocast rounds where the host's
does. It uses private parts of torch 2.13.
"""

from __future__ import annotations

import os
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def environment(**settings: object) -> dict[str, str]:
    """Variables for a process in which torch has the device; settings as of `Settings`."""
    paths = [str(_HERE / "plugin"), str(_HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "HETERPS_SIM_DEVICE": ",".join(f"{name}={value}" for name, value in settings.items()),
    }
