"""What a planner or a login node loads: no writers, no torch for a model's description."""

import json
import subprocess
import sys

import pytest


def loaded_by(statement: str) -> set[str]:
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


def test_reading_a_dataset_does_not_load_the_writers() -> None:
    loaded = loaded_by("import heterps_hpc.dataset, heterps_hpc.dataset.show")
    assert "heterps_hpc.dataset.read.reader" in loaded
    assert {name for name in loaded if name.startswith("heterps_hpc.dataset.write")} == set()


@pytest.mark.parametrize("statement", ["import heterps_hpc.models", "import heterps_hpc.config"])
def test_describing_a_job_loads_neither_torch_nor_hdf5(statement: str) -> None:
    assert loaded_by(statement) & {"torch", "h5py", "mpi4py", "pyarrow"} == set()
