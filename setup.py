"""Builds heterps_hpc.core._core; everything else about the package is in setup.cfg.

HETERPS_SANITIZE=address,undefined builds with those sanitizers, into build/sanitize.
HETERPS_CORE=prebuilt leaves the extension alone: `make setup` compiles or caches it by itself.
"""

import os
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

sanitizers = os.environ.get("HETERPS_SANITIZE", "")
flags = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-pthread"]
# how vectors are passed hangs on the target; no kernel passes one to another unit
flags += ["-Wno-psabi"]
links = ["-pthread"]
options = {}
if sanitizers:
    flags = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-pthread"]
    flags += ["-ffp-contract=off", "-Wno-psabi", f"-fsanitize={sanitizers}"]
    links += [f"-fsanitize={sanitizers}"]
    options = {"build": {"build_base": "build/sanitize"}}

sources = Path("heterps_hpc/core/src")
core = Pybind11Extension(
    "heterps_hpc.core._core",
    sorted(str(p) for p in sources.glob("*.cpp")),
    depends=sorted(str(p) for p in sources.glob("*.hpp")),
    cxx_std=20,
    extra_compile_args=flags,
    extra_link_args=links,
)

ParallelCompile("HETERPS_BUILD_JOBS", default=2).install()
extensions = [] if os.environ.get("HETERPS_CORE") == "prebuilt" else [core]
setup(ext_modules=extensions, cmdclass={"build_ext": build_ext}, options=options)
