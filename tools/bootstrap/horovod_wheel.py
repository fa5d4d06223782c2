"""Horovod built from its published source for our torch and our MPI.

Horovod 0.28.1 is the last release and offers no wheels. It asks for C++14 in two places,
which torch's headers refuse. And its thread polls: every cycle it wakes to ask its peers whether
there is work, and then MPI spins until they answer. On a CPU rank that is the core which computes:
ours sleeps until there is work, and naps until there is an answer. The wheel is tied to torch,
Python, MPI and compiler, so all of them are in its key.
"""

import hashlib
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

from tools.bootstrap.cache import Cache, content_key
from tools.bootstrap.mpi import MpiBuild
from tools.bootstrap.progress import SetupError, StepProgress

VERSION = "0.28.1"
SOURCE_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
# Collectives that wait like heterps_hpc/runtime/waiting.py: a short spin, then naps that grow.
PATIENT_MPI = """
#include <algorithm>
#include <chrono>
#include <thread>

template <typename Start> int mpi_patiently(Start start) {
  using namespace std::chrono;
  MPI_Request request;
  int code = start(&request);
  const auto began = steady_clock::now();
  for (int done = 0; code == MPI_SUCCESS;) {
    code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done) break;
    const auto waited = duration_cast<microseconds>(steady_clock::now() - began);
    if (waited < microseconds(200)) std::this_thread::yield();
    else std::this_thread::sleep_for(
        std::clamp(waited / 16, microseconds(50), microseconds(500)));
  }
  return code;
}
""" + "".join(
    f"#define MPI_{name}(...) mpi_patiently("
    f"[&](MPI_Request* r) {{ return MPI_I{name.lower()}(__VA_ARGS__, r); }})\n"
    for name in (
        *("Allgather", "Allgatherv", "Allreduce", "Alltoall", "Alltoallv"),
        *("Barrier", "Bcast", "Gather", "Gatherv"),
    )
)
# file, a text that occurs in it exactly once, and what replaces it
PATCHES = (
    ("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    ("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    ("horovod/common/tensor_queue.h", "#include <queue>", "#include <queue>\n#include <semaphore>"),
    (
        "horovod/common/tensor_queue.h",
        "class TensorQueue {",
        "inline std::counting_semaphore<> work_arrived{0};\n\nclass TensorQueue {",
    ),
    (
        "horovod/common/tensor_queue.cc",
        "tensor_table_.emplace(e.tensor_name, std::move(e));",
        "tensor_table_.emplace(e.tensor_name, std::move(e));\n  work_arrived.release();",
    ),
    (
        "horovod/common/tensor_queue.cc",
        "tensor_table_.emplace(entries[i].tensor_name, std::move(entries[i]));",
        "tensor_table_.emplace(entries[i].tensor_name, std::move(entries[i]));\n"
        "    work_arrived.release();",
    ),
    (  # a tensor that a peer did not have yet is asked for again at once
        "horovod/common/tensor_queue.cc",
        "messages.pop_front();",
        "messages.pop_front();\n    work_arrived.release();",
    ),
    (
        "horovod/common/operations.cc",
        "std::this_thread::sleep_for(sleep_duration);",
        "work_arrived.try_acquire_for(sleep_duration);",
    ),
    (
        "horovod/common/mpi/mpi_context.h",
        "#endif // HOROVOD_MPI_CONTEXT_H",
        PATIENT_MPI + "#endif // HOROVOD_MPI_CONTEXT_H",
    ),
    (
        "horovod/common/operations.cc",
        "    horovod_global.background_thread.join();",
        "    work_arrived.release();\n    horovod_global.background_thread.join();",
    ),
)
# Libraries are found relative to the wheel's own place, so that it serves any environment;
# a site's MPI lies elsewhere and is found by the path it was linked with.
RUNPATH = r"""
set_target_properties(${PYTORCH_TARGET_LIB} PROPERTIES BUILD_WITH_INSTALL_RPATH TRUE
                      INSTALL_RPATH_USE_LINK_PATH %s
                      INSTALL_RPATH "\$ORIGIN/../../torch/lib;\$ORIGIN/../../../..")
"""


def build_options(mpi: MpiBuild, environment: Mapping[str, str]) -> dict[str, str]:
    """Horovod's build variables; the user's own HOROVOD_… win (such as NCCL on CUDA nodes)."""
    x86 = platform.machine() == "x86_64"
    options = {
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_GLOO": "1",  # of no use under mpirun, and 1.7 times the compile time
        "HOROVOD_CPU_OPERATIONS": "MPI",
        "HOROVOD_BUILD_ARCH_FLAGS": "-mf16c -mavx -mfma" if x86 else "",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # its cmake files are older than cmake 4 takes
        "LDFLAGS": "-s",
    }
    own = {k: v for k, v in environment.items() if k.startswith("HOROVOD_")}
    return {**options, **own}


def horovod_key(mpi: MpiBuild, torch_build: str, toolchain: str) -> dict[str, object]:
    """Everything the wheel depends on."""
    return {
        "source": SOURCE_SHA256,
        "patch": [PATCHES, RUNPATH],
        "options": build_options(mpi, os.environ),
        "mpi": mpi.identity,
        "torch": torch_build,
        "toolchain": toolchain,
    }


def horovod_wheel(
    cache: Cache, key: dict[str, object], mpi: MpiBuild, venv: Path, progress: StepProgress
) -> Path:
    """The wheel, from the cache or built now."""

    def build(target: Path) -> None:
        source = _unpack(_download(target, venv, progress), target)
        _patch(source, own_mpi=mpi.package is None)
        environment = {
            **build_options(mpi, os.environ),
            "HOROVOD_LOCAL_VERSION": f"heterps.{content_key(key)}",
            "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
        }
        if mpi.package is not None:
            environment["MPI_HOME"] = str(venv)
        words = ["-v", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
        progress.run(
            "horovod: compile (some minutes, once per machine)",
            [venv / "bin/python", "-m", "pip", "wheel", *words, "-w", target, source],
            env=environment,
        )
        shutil.rmtree(target / "source")

    folder = cache.get("horovod", key, build)
    return next(folder.glob("horovod-*.whl"))


def _download(target: Path, venv: Path, progress: StepProgress) -> Path:
    words = ["--no-deps", "--no-build-isolation", "--no-binary", "horovod"]
    folder = target / "source"
    progress.run(
        "horovod: fetch the source",
        [venv / "bin/python", "-m", "pip", "download", *words, "-d", folder, f"horovod=={VERSION}"],
    )
    archive = folder / f"horovod-{VERSION}.tar.gz"
    got = hashlib.sha256(archive.read_bytes()).hexdigest()
    if got != SOURCE_SHA256:
        raise SetupError(
            f"{archive.name} has SHA-256 {got}, not {SOURCE_SHA256}: the package index "
            "gave another file than the one that was reviewed; check the index"
        )
    return archive


def _unpack(archive: Path, target: Path) -> Path:
    shutil.unpack_archive(archive, target / "source")  # its digest was checked just now
    return target / "source" / f"horovod-{VERSION}"


def _patch(source: Path, own_mpi: bool) -> None:
    for name, old, new in PATCHES:
        path = source / name
        text = path.read_text()
        if text.count(old) != 1:
            raise SetupError(f"horovod's {name} does not have {old!r} once")
        path.write_text(text.replace(old, new))
    with (source / "horovod/torch/CMakeLists.txt").open("a") as file:
        file.write(RUNPATH % ("TRUE" if own_mpi else "FALSE"))
