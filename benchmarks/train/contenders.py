"""How each contender is started; each prints one JSON object with its samples per second, while
rows are new (`growing`) and when all are there (`settled`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import peer_python
from benchmarks.train.paddle_text import ready_text
from benchmarks.train.workload import Workload
from heterps_hpc.launch.mpi import find_mpi, mpi_environment

ROOT = Path(__file__).resolve().parents[2]
_TIME_LIMIT = 300
_PADDLE_WARM, _PADDLE_TIMED = 2, 10  # batches

Figures = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """A way to train a workload."""

    name: str
    run: Callable[[Workload, Path], Figures]


def _environment(**more: str) -> dict[str, str]:
    flavour = find_mpi().flavour
    return {
        **os.environ,
        **mpi_environment(flavour, "local"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **more,
    }


def _figures(output: str) -> Figures:
    lines = [line for line in output.splitlines() if line.startswith('{"')]
    found: Figures = json.loads(lines[-1])
    return found


def _call(command: list[object], time_limit: float = _TIME_LIMIT, **environment: str) -> Figures:
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        env=_environment(**environment),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=time_limit,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words[:6])} … failed:\n{done.stderr[-3000:]}")
    return _figures(done.stdout)


def mpirun(
    num_ranks: int, module: str, *arguments: object, time_limit: float = _TIME_LIMIT
) -> Figures:
    """A module of ours on MPI ranks."""
    ranks = [sys.executable, "-m", "mpi4py", "-m", module]
    bind = ["--bind-to", "none"] if find_mpi().flavour == "openmpi" else []
    return _call([find_mpi().mpirun, "-n", num_ranks, *bind, *ranks, *arguments], time_limit)


def ours(
    stages: str, micro_batches: int, staleness: int = 1
) -> Callable[[Workload, Path], Figures]:
    """Our trainer with that layout."""
    num_ranks = sum(int(part.partition(":")[2]) for part in stages.split(","))

    def run(work: Workload, data: Path) -> Figures:
        module = "benchmarks.train.ours"
        return mpirun(num_ranks, module, work.to_json(), data, stages, micro_batches, staleness)

    return run


def limit(num_processes: int) -> Callable[[Workload, Path], Figures]:
    """That many processes at once that only train dense layers; their rates added up."""

    def run(work: Workload, data: Path) -> Figures:
        command = [sys.executable, "-m", "benchmarks.train.limit", work.to_json(), str(data)]
        processes = [
            subprocess.Popen(
                [*command, str(num_processes), str(number)],
                env=_environment(),
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(num_processes)
        ]
        outputs = [process.communicate(timeout=_TIME_LIMIT)[0] for process in processes]
        return {"settled": sum(_figures(out)["settled"] for out in outputs)}

    return run


def tables_alone(work: Workload, data: Path) -> Figures:
    """The sparse stage alone."""
    return _call([sys.executable, "-m", "benchmarks.train.tables_alone", work.to_json(), data])


def torch_alone(work: Workload, data: Path) -> Figures:
    """One process of torch on both cores."""
    module = "benchmarks.train.torch_peer"
    return _call([sys.executable, "-m", module, work.to_json(), data, 2], OMP_NUM_THREADS="2")


def horovod(work: Workload, data: Path) -> Figures:
    """Horovod with torch's sparse gradients, two ranks."""
    return mpirun(2, "benchmarks.train.torch_peer", work.to_json(), data, 1, "horovod")


def torchrec(tunables: str = "") -> Callable[[Workload, Path], Figures]:
    """TorchRec on two gloo ranks, with these settings of the C library's allocator."""
    module = ["-m", "benchmarks.train.torchrec_peer"]

    def run(work: Workload, data: Path) -> Figures:
        launcher = [peer_python("torchrec"), "-m", "torch.distributed.run", "--nproc-per-node", 2]
        return _call([*launcher, *module, work.to_json(), data], GLIBC_TUNABLES=tunables)

    return run


def paddle(threads: int) -> Callable[[Workload, Path], Figures]:
    """Paddle's parameter server, one server and one trainer."""

    def run(work: Workload, data: Path) -> Figures:
        warm = ready_text(work, data, _PADDLE_WARM)
        timed = ready_text(work, data, _PADDLE_TIMED)
        samples = _PADDLE_TIMED * work.batch_size
        script = ROOT / "benchmarks/train/paddle_peer.py"
        python = peer_python("paddle")
        return _call([python, script, work.to_json(), timed, warm, samples, threads])

    return run
