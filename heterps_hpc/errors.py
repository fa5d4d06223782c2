"""Errors that are the user's to fix, as opposed to our bugs."""

MAX_MESSAGE = 2000


class UserError(ValueError):
    """A mistake in what the user wrote or passed: says what, got and remedy; exit code 2."""

    def __init__(self, message: str) -> None:
        # names in it come from the user, and may be of any length
        if len(message) > MAX_MESSAGE:
            message = message[: MAX_MESSAGE // 2] + " … " + message[-MAX_MESSAGE // 2 :]
        super().__init__(message)
