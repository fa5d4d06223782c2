"""Results of one run, gathered from its ranks, and how they are held against the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.equivalence.oracle import Learned

# Relative, in norm per tensor; float32 is not a tenth of a digit better than this in one process.
# bf16 was seen to agree to 1e-7, but where the order of a sum puts a value on the other side of a
# tie, it moves by 1/256 of itself; without autocast every case fails, by up to 2e-2. So do rows of
# two bytes.
TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "bf16": 1e-4, "fp16 gradients": 2e-3}


def differences(got: Learned, expected: Learned, precision: str) -> list[str]:
    """Every way in which a run differs from the oracle; none if they agree."""
    limit = TOLERANCE[precision]
    found = _compare("losses", np.array(got.losses), np.array(expected.losses), limit)
    found += _names("dense tensors", got.dense, expected.dense)
    for name in expected.dense.keys() & got.dense.keys():
        found += _compare(f"dense {name}", got.dense[name], expected.dense[name], limit)
    for name, value in expected.evaluation.items():
        # scores are kept in float32, and one pair of 211 samples is 1e-4 of an AUC
        if not abs(got.evaluation.get(name, np.nan) - value) <= (1e-3 if name == "auc" else 1e-5):
            found.append(f"{name} on the test set: {got.evaluation.get(name)} instead of {value}")
    found += _names("tables", _not_empty(got.rows), _not_empty(expected.rows))
    for name in expected.rows.keys() & got.rows.keys():
        keys, vectors = got.rows[name]
        expected_keys, expected_vectors = expected.rows[name]
        if not np.array_equal(keys, expected_keys):
            found.append(
                f"table {name}: {len(keys)} rows, the oracle has {len(expected_keys)}; "
                f"{len(np.setxor1d(keys, expected_keys))} keys differ"
            )
        else:
            found += _compare(f"table {name}", vectors, expected_vectors, limit)
    return found


def _not_empty(tables: dict[str, Any]) -> dict[str, Any]:
    """A table of which no batch had a key may be there or not."""
    return {name: rows for name, rows in tables.items() if len(rows[0])}


def same_bits(left: Learned, right: Learned) -> list[str]:
    """Every tensor in which two runs differ by as little as a bit."""
    found = []
    if not np.array_equal(left.losses, right.losses, equal_nan=True):
        found.append("losses")
    found += [name for name in left.dense if not _identical(left.dense[name], right.dense[name])]
    for name, (keys, vectors) in left.rows.items():
        other_keys, other_vectors = right.rows[name]
        if not (_identical(keys, other_keys) and _identical(vectors, other_vectors)):
            found.append(f"table {name}")
    return found


def merge_ranks(parts: list[dict[str, Any]]) -> Learned:
    """One result from all ranks: replicas must agree bit for bit, shards must not overlap."""
    dense: dict[str, NDArray[Any]] = {}
    for rank, part in enumerate(parts):
        for name, value in part["dense"].items():
            if name in dense and not _identical(dense[name], value):
                raise AssertionError(f"rank {rank} has another {name} than an earlier replica")
            dense.setdefault(name, value)
    rows = {}
    for table in dict.fromkeys(name for part in parts for name in part["rows"]):
        shards = [part["rows"][table] for part in parts if table in part["rows"]]
        keys = np.concatenate([shard[0] for shard in shards])
        vectors = np.concatenate([shard[1] for shard in shards])
        if len(np.unique(keys)) != len(keys):
            raise AssertionError(f"table {table}: a key is on two ranks")
        order = np.argsort(keys)
        rows[table] = (keys[order], vectors[order])
    return Learned(list(parts[0]["losses"]), dense, rows, dict(parts[0]["evaluation"]))


def save(learned: Learned, path: Path) -> None:
    """Write a result; whole or not at all."""
    arrays: dict[str, NDArray[Any]] = {"losses": np.array(learned.losses)}
    arrays |= {f"dense/{name}": value for name, value in learned.dense.items()}
    arrays |= {f"test/{name}": np.array(value) for name, value in learned.evaluation.items()}
    for name, (keys, vectors) in learned.rows.items():
        arrays[f"keys/{name}"], arrays[f"vectors/{name}"] = keys, vectors
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        np.savez(file, **arrays)
    temporary.rename(path)


def load(path: Path) -> Learned:
    """Read what `save` wrote."""
    with np.load(path) as arrays:
        dense, rows, evaluation = {}, {}, {}
        for name in arrays.files:
            kind, _, rest = name.partition("/")
            if kind == "dense":
                dense[rest] = arrays[name]
            elif kind == "test":
                evaluation[rest] = float(arrays[name])
            elif kind == "keys":
                rows[rest] = (arrays[name], arrays[f"vectors/{rest}"])
        return Learned(arrays["losses"].tolist(), dense, rows, evaluation)


def _names(what: str, got: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    if got.keys() == expected.keys():
        return []
    return [f"{what}: {sorted(got)} instead of {sorted(expected)}"]


def _compare(what: str, got: NDArray[Any], expected: NDArray[Any], limit: float) -> list[str]:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return [f"{what}: {got.dtype}{got.shape} instead of {expected.dtype}{expected.shape}"]
    finite = np.isfinite(expected)
    if not np.array_equal(np.isfinite(got), finite):
        return [f"{what}: other numbers than in the oracle are not finite"]
    wanted = expected[finite].astype(np.float64)
    scale = float(np.linalg.norm(wanted)) or 1.0
    error = float(np.linalg.norm(got[finite].astype(np.float64) - wanted)) / scale
    return [] if error <= limit else [f"{what}: differs by {error:.2e} of its norm"]


def _identical(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())
