"""For every test: the programs under test start with default signals, and compute without AMX.

A shell ignores SIGINT and SIGQUIT for a command in the background, nohup ignores SIGHUP, and a
program inherits that. A handler is not inherited: programs start with the signal's default.

Some virtual machines announce AMX but cannot run it: bfloat16 in torch ends with "could not create
a primitive" or an illegal instruction. Without it, tests mean the same on every host.
"""

import os
import signal

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

IGNORED_BY_SHELLS = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGTERM)


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in IGNORED_BY_SHELLS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # as before for pytest itself
