"""The steps of `make setup`, in the order that they need each other."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tools.bootstrap import choices
from tools.bootstrap.cache import Cache, Stamps, content_key, file_digest
from tools.bootstrap.core import core_key, install_core
from tools.bootstrap.horovod_wheel import horovod_key, horovod_wheel
from tools.bootstrap.mpi import MpiBuild
from tools.bootstrap.progress import SetupError, StepProgress
from tools.bootstrap.requirements import BUILD_TOOLS, canonical, names, read_needs

TORCH_BUILD = (
    "import torch; print(torch.__version__, torch.version.git_version, torch.version.cuda, "
    "torch.compiled_with_cxx11_abi())"
)
STAMPS_DIR = ".heterps"  # within the environment
GROUPS = ("", "mpi", "baselines", "onnx", "report", "dev")  # what developing and testing needs


@dataclass(frozen=True)
class Settings:
    """What the user chose."""

    root: Path
    venv: Path
    mpi: MpiBuild
    pins: dict[str, str]
    choices: dict[str, str]  # as given; remembered for the next time
    torch: str  # a requirement, such as torch==2.13.0
    torch_pip_args: tuple[str, ...]  # such as another package index for a CUDA build


@dataclass(frozen=True)
class Environment:
    """A virtual environment being made, step by step."""

    settings: Settings
    cache: Cache
    progress: StepProgress

    def make(self) -> bool:
        """Do the steps that are not done; true if there were any."""
        steps = (
            ("venv", self._venv_key, self._make_venv),
            (choices.STAMP, self._choices_key, lambda: None),
            ("build-tools", self._build_tools_key, self._install_build_tools),
            ("torch", self._torch_key, self._install_torch),
            ("packages", self._packages_key, self._install_packages),
            ("horovod", self._horovod_key, self._install_horovod),
            ("core", self._core_key, self._install_core),
            ("package", self._package_key, self._install_package),
            ("check", self._check_key, self._check),
        )
        did_something = False
        for name, key_of, act in steps:
            key = key_of()
            if not self.stamps.done(name, key):
                act()
                self.stamps.mark(name, key)
                did_something = True
        return did_something

    @property
    def python(self) -> Path:
        return self.settings.venv / "bin/python"

    @property
    def stamps(self) -> Stamps:
        return Stamps(self.settings.venv / STAMPS_DIR)

    @cached_property
    def toolchain(self) -> str:
        """Compiler and Python, as far as a binary depends on them."""
        compiler = os.environ.get("CXX", "c++")
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True)
        abi = sysconfig.get_config_var("SOABI")
        return f"{version.stdout.splitlines()[0]} | {abi} | {os.confstr('CS_GNU_LIBC_VERSION')}"

    def _pip(self, title: str, *words: str | Path) -> None:
        install = ["-m", "pip", "--disable-pip-version-check", "install"]
        self.progress.run(title, [self.python, *install, *words])

    def _pinned(self, name: str) -> str:
        return f"{name}=={self.settings.pins[canonical(name)]}"

    def _venv_key(self) -> str:
        # scripts of an environment carry its path: one that was moved is made again
        return f"{self.settings.venv} {sys.version.split()[0]}"

    def _make_venv(self) -> None:
        require_tools()
        if (self.settings.venv / "conda-meta").is_dir():
            return  # an environment of conda's: its Python is the one to install into
        clear = ["--clear"] if self.stamps.folder.is_dir() else []  # one made by hand is adopted
        self.progress.run(
            "virtual environment", [sys.executable, "-m", "venv", *clear, self.settings.venv]
        )

    def _choices_key(self) -> str:
        return json.dumps(self.settings.choices)

    def _build_tools_key(self) -> str:
        return " ".join(self._pinned(name) for name in BUILD_TOOLS)

    def _install_build_tools(self) -> None:
        self._pip("build tools", *(self._pinned(name) for name in BUILD_TOOLS))

    def _pins_digest(self) -> str:
        return file_digest(self.settings.root / "requirements/pins.txt")

    def _constraints(self) -> Path:
        """The pins, for what the packages themselves need; without torch, which may be chosen."""
        pins = {**self.settings.pins}
        del pins["torch"]
        constraints = self.settings.venv / "constraints.txt"
        constraints.write_text("".join(f"{name}=={pin}\n" for name, pin in pins.items()))
        return constraints

    def _torch_key(self) -> str:
        return " ".join([self.settings.torch, *self.settings.torch_pip_args, self._pins_digest()])

    def _install_torch(self) -> None:
        settings = self.settings
        words: list[str | Path] = [settings.torch, self._pinned("numpy"), *settings.torch_pip_args]
        if settings.torch.startswith(self._pinned("torch")):
            words += ["-c", self._constraints()]  # another release may need other versions
        self._pip("torch", *words)

    def _packages(self) -> list[str]:
        """All that setup.cfg names, pinned; torch is there, horovod comes as our wheel."""
        needs = read_needs(self.settings.root / "setup.cfg")
        wanted = {canonical(name) for group in GROUPS for name in names(needs[group])}
        wanted -= {"torch", "horovod"}
        if self.settings.mpi.package is None:
            wanted -= {"mpi4py"}  # built from source against the site's MPI
        else:
            wanted |= {self.settings.mpi.package}
        return [self._pinned(name) for name in sorted(wanted)]

    def _packages_key(self) -> str:
        return content_key({"packages": self._packages(), "torch": self._torch_key()})

    def _install_packages(self) -> None:
        self._pip("packages", "-c", self._constraints(), *self._packages())
        if self.settings.mpi.mpicc is not None:
            self._pip_mpi4py(self.settings.mpi.mpicc)

    def _pip_mpi4py(self, mpicc: Path) -> None:
        words = ["--no-cache-dir", "--force-reinstall", "--no-deps", "--no-binary", "mpi4py"]
        os.environ["MPICC"] = str(mpicc)
        self._pip("mpi4py for the site's MPI", *words, self._pinned("mpi4py"))

    @cached_property
    def _torch_build(self) -> str:
        stamp = self.stamps.folder / "torch-build"  # importing torch takes a second
        key = self._torch_key()
        if stamp.is_file() and stamp.read_text().startswith(key + "\n"):
            return stamp.read_text().splitlines()[1]
        done = subprocess.run([self.python, "-c", TORCH_BUILD], capture_output=True, text=True)
        if done.returncode != 0:
            raise SetupError(f"torch does not import:\n{done.stderr}")
        stamp.write_text(f"{key}\n{done.stdout}")
        return done.stdout.strip()

    def _horovod_key_parts(self) -> dict[str, object]:
        return horovod_key(self.settings.mpi, self._torch_build, self.toolchain)

    def _horovod_key(self) -> str:
        return content_key(self._horovod_key_parts())

    def _install_horovod(self) -> None:
        settings = self.settings
        parts = self._horovod_key_parts()
        wheel = horovod_wheel(self.cache, parts, settings.mpi, settings.venv, self.progress)
        self._pip("horovod: install", "--no-deps", "--force-reinstall", wheel)

    def _core_key_parts(self) -> dict[str, object]:
        return core_key(self.settings.root, self.toolchain, self.settings.pins["pybind11"])

    def _core_key(self) -> str:
        return content_key(self._core_key_parts())

    def _install_core(self) -> None:
        settings = self.settings
        parts = self._core_key_parts()
        install_core(self.cache, parts, settings.root, settings.venv, self.progress)

    def _package_key(self) -> str:
        root = self.settings.root
        return f"{root} {file_digest(root / 'setup.cfg', root / 'pyproject.toml')}"

    def _install_package(self) -> None:
        os.environ["HETERPS_CORE"] = "prebuilt"  # setup.py then leaves the extension alone
        words = ["--no-deps", "--no-build-isolation", "-e"]
        self._pip("heterps", *words, self.settings.root)

    def _check_key(self) -> str:
        return f"{self._horovod_key()} {self._packages_key()}"

    def _check(self) -> None:
        program = self.settings.root / "tools/check_mpi.py"
        mpirun = self.settings.venv / "bin/mpirun"
        launcher = mpirun if self.settings.mpi.mpicc is None else self.settings.mpi.mpirun
        self.progress.run(
            "check: four ranks, Horovod on two of them",
            ["timeout", "120", launcher, "-n", "4", self.python, "-m", "mpi4py", program],
            env={
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
                "OMPI_MCA_rmaps_base_oversubscribe": "1",
                "OMP_NUM_THREADS": "1",
            },
        )


def require_tools() -> None:
    """Say at once what is missing, rather than minutes later in a compiler's words."""
    missing = [tool for tool in ("c++", "cmake", "make") if shutil.which(tool) is None]
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        missing.append(f"Python's headers ({header})")
    if missing:
        raise SetupError(
            f"missing: {', '.join(missing)}. On Debian or Ubuntu: "
            "apt-get install g++ cmake make python3-dev python3-venv"
        )
