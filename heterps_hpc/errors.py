"""Errors that are the user's to fix, as opposed to our bugs."""


class UserError(ValueError):
    """A mistake in what the user wrote or passed: says what, got and remedy; exit code 2."""
