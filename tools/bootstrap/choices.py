"""What an environment was made with, so that `make test` need not be given it again."""

import json
from collections.abc import Mapping
from pathlib import Path

from tools.bootstrap.progress import SetupError

STAMP = "choices"


def choices_in_force(venv: Path, stamps: Path, given: Mapping[str, str]) -> dict[str, str]:
    """What was given now, else what was given when the environment was made.

    Left out everywhere means the default, which may change with the project. An environment
    cannot change its MPI: two of them in one place would mix.
    """
    stamp = stamps / STAMP
    before: dict[str, str] = json.loads(stamp.read_text()) if stamp.is_file() else {}
    choices = {**before, **{name: value for name, value in given.items() if value}}
    choices.setdefault("mpi", "mpich")
    if before and before["mpi"] != choices["mpi"]:
        raise SetupError(
            f"{venv} was made with MPI={before['mpi']}, not MPI={choices['mpi']}: "
            f"give another folder (VENV=.venv-{choices['mpi']}), or remove this one first"
        )
    return choices
