"""Free memory is what the limits of Slurm and of containers leave, not what the node has."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from heterps_hpc.runtime.health.free_memory import free_memory

CACHE = "anon 5\ninactive_file 100\nactive_file 20\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "left"),
    [
        pytest.param(  # the job's limit counts, not that of its task
            {
                "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
                "sys/fs/cgroup/slurm/job_7/memory.max": "5000\n",
                "sys/fs/cgroup/slurm/job_7/memory.current": "1000\n",
                "sys/fs/cgroup/slurm/job_7/memory.stat": CACHE,
                "sys/fs/cgroup/slurm/job_7/step_0/memory.max": "max\n",
                "sys/fs/cgroup/slurm/job_7/step_0/memory.current": "900\n",
            },
            4120,
            id="version 2, under Slurm",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "12:cpu,cpuacct:/a\n4:memory:/docker/f00\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "3000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
            },
            2000,
            id="version 1, in a container",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/x\n",
                "sys/fs/cgroup/x/memory.max": "1000\n",
                "sys/fs/cgroup/x/memory.current": "1001\n",
            },
            0,
            id="all of it in use",
        ),
    ],
)
def test_the_tightest_limit_counts(tmp_path: Path, files: dict[str, str], left: int) -> None:
    assert free_memory(write(tmp_path, files)) == left


@pytest.mark.parametrize("cgroup", ["", "0::/\n", "4:memory:/\n"])
def test_without_a_limit_it_is_the_nodes(
    tmp_path: Path, cgroup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: found)
    assert free_memory(write(tmp_path, {"proc/self/cgroup": cgroup})) == found.available


def test_this_machine_has_memory() -> None:
    assert 1 << 20 < free_memory() <= psutil.virtual_memory().total
