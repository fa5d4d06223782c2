"""Errors that end in one line for the user, as opposed to our bugs."""

from heterps_hpc.exit_codes import ExitCode

MAX_MESSAGE = 2000


class UserError(ValueError):
    """A mistake in what the user wrote or passed: says what, got and remedy; exit code 2."""

    def __init__(self, message: str) -> None:
        # names in it come from the user, and may be of any length
        if len(message) > MAX_MESSAGE:
            message = message[: MAX_MESSAGE // 2] + " … " + message[-MAX_MESSAGE // 2 :]
        super().__init__(message)


class StartFailed(Exception):
    """Ranks that a command or a caller in Python needs have failed."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code
