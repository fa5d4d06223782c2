"""For every test: signals that whoever started pytest has ignored reach the programs under test.

A shell ignores SIGINT and SIGQUIT for a command in the background, nohup ignores SIGHUP, and a
program inherits that. A handler is not inherited: programs start with the signal's default.
"""

import signal

IGNORED_BY_SHELLS = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGTERM)


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in IGNORED_BY_SHELLS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # as before for pytest itself
