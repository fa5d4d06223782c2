"""The C++ core: compiled in place, or taken from the cache when it was compiled before."""

import os
import shutil
from pathlib import Path

from tools.bootstrap.cache import Cache, file_digest
from tools.bootstrap.progress import StepProgress

SOURCES = ("*.cpp", "*.cc", "*.hpp", "*.h")


def core_key(root: Path, toolchain: str, pybind11: str) -> dict[str, object]:
    """Everything the extension depends on."""
    core = root / "heterps_hpc/core"
    sources = sorted(path for pattern in SOURCES for path in core.rglob(pattern))
    flags = ("CXX", "CXXFLAGS", "CFLAGS", "LDFLAGS", "HETERPS_SANITIZE")
    return {
        "sources": file_digest(root / "setup.py", *sources),
        "toolchain": toolchain,
        "pybind11": pybind11,
        "flags": {name: os.environ.get(name, "") for name in flags},
    }


def install_core(
    cache: Cache, key: dict[str, object], root: Path, venv: Path, progress: StepProgress
) -> None:
    """Put the extension next to its sources, where an editable install finds it."""

    def build(target: Path) -> None:
        places: list[str | Path] = ["--build-lib", target / "lib", "--build-temp", target / "temp"]
        progress.run(
            "core: compile",
            [venv / "bin/python", "setup.py", "-q", "build_ext", "--force", *places],
            env={"HETERPS_BUILD_JOBS": str(len(os.sched_getaffinity(0)))},
            cwd=root,
        )
        shutil.rmtree(target / "temp", ignore_errors=True)

    folder = cache.get("core", key, build) / "lib"
    for built in folder.rglob("*.so"):
        target = root / built.relative_to(folder)
        # a new file put in place by rename: a running process keeps the old one mapped
        scratch = target.with_name(target.name + ".new")
        shutil.copy2(built, scratch)
        scratch.replace(target)
