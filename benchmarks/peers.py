"""Peers that need packages of their own get a virtual environment of their own, made once.

    python = peer_python("torchrec")

Environments are kept in the cache folder, by their list of packages, so that a second clone or a
second benchmark finds them there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

log = logging.getLogger(__name__)

# Each peer is a list of pip calls, in order: torch comes first and pinned, because a plain
# `torch`, asked for by another package, would bring gigabytes of CUDA.
_DATA = ["numpy==2.4.6", "h5py==3.16.0", "hdf5plugin==7.1.0", "pydantic==2.14.3", "xxhash==4.1.0"]
_DATA += ["pyyaml==6.0.3", "rich==15.0.0"]
PEERS: dict[str, list[list[str]]] = {
    "fbgemm": [["torch==2.13.0", "numpy==2.4.6"], ["--no-deps", "fbgemm-gpu-cpu==1.8.0"]],
    "torchrec": [
        ["torch==2.13.0", *_DATA],
        ["--no-deps", "fbgemm-gpu-cpu==1.8.0"],
        ["--no-deps", "torchrec==1.8.0"],
        ["torchmetrics==1.0.3", "tensordict", "iopath", "pyre-extensions", "tqdm", "setuptools<81"],
    ],
    "pandas": [["pandas==3.1.1", "numpy==2.4.6", "h5py==3.16.0", "xxhash==4.1.0"]],
    "paddle": [["paddlepaddle==2.6.2", "protobuf==4.25.3", "numpy<2", "setuptools<81"]],
}


def cache_folder() -> Path:
    """Where environments of peers are kept."""
    chosen = os.environ.get("HETERPS_CACHE")
    if chosen:
        return Path(chosen) / "peers"
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "heterps" / "peers"


def peer_python(name: str) -> Path:
    """The interpreter of a peer's environment; makes the environment on first use."""
    calls = PEERS[name]
    recipe = json.dumps([calls, sys.version])
    key = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    venv = folder / f"{name}-{key}"
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (venv / "complete").exists():
            shutil.rmtree(venv, ignore_errors=True)
            log.warning("making the environment of %s; this takes some minutes once", name)
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
            for packages in calls:
                pip = [venv / "bin/python", "-m", "pip", "install", "-q", *packages]
                subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
            (venv / "complete").touch()
    return venv / "bin/python"
