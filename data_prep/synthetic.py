"""Generated click logs: Zipfian keys, and planted weights that a model can learn.

A click is drawn from the logistic of a sum of planted weights, one per key and dense column. All
of it is a function of (seed, part, row), so any size streams in bounded memory, and the train and
test parts of one seed share their weights.

    python -m data_prep.synthetic OUT --rows 1000000 --slots 26 --cardinality 100000
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data_prep.options import Parser
from heterps_hpc.counter_rng import mix64, seed_of
from heterps_hpc.dataset import Compression, Keys, SampleRows, Schema, SlotSpec, offsets_of
from heterps_hpc.dataset.manifest import MANIFEST_FILE, DatasetManifest
from heterps_hpc.dataset.write import DatasetWriter
from heterps_hpc.errors import UserError

log = logging.getLogger(__name__)

_STEP = 65_536  # rows that are drawn at once
_MAX_VALUES = 1 << 25  # of them, in rows of very many keys: a few hundred MB
_MAX_SHARD_VALUES = 1 << 26  # a writer keeps the keys of a shard until it is whole
_PLANTED_SCALE = 1.6  # standard deviation of the logit: the best possible AUC is about 0.81
_BASE_LOGIT = -1.1  # about one click in three


@dataclass(frozen=True)
class SyntheticSlot:
    """A categorical feature: keys are drawn by Zipf's law out of `cardinality`."""

    name: str
    cardinality: int = 10_000
    keys_per_sample: float = 1.0
    zipf: float = 1.1
    weighted: bool = False

    def __post_init__(self) -> None:
        if self.cardinality < 1 or self.keys_per_sample <= 0 or self.zipf < 0:
            raise UserError(
                f"slot {self.name!r}: cardinality {self.cardinality}, keys_per_sample "
                f"{self.keys_per_sample} and zipf {self.zipf} must be positive"
            )

    @property
    def spec(self) -> SlotSpec:
        """Its entry in the schema: exactly one key, or a Poisson number of them."""
        many = self.keys_per_sample != 1 or self.weighted
        return SlotSpec(name=self.name, kind="many" if many else "one", weighted=self.weighted)


class SyntheticSpec(Protocol):
    """What a job file says of generated data (heterps_hpc.config.SyntheticData)."""

    @property
    def train_rows(self) -> int: ...
    @property
    def test_rows(self) -> int: ...
    @property
    def num_slots(self) -> int: ...
    @property
    def cardinality(self) -> int: ...
    @property
    def keys_per_sample(self) -> float: ...
    @property
    def zipf(self) -> float: ...
    @property
    def num_dense(self) -> int: ...
    @property
    def seed(self) -> int: ...


def zipf_ranks(
    uniform: NDArray[np.float64], cardinality: int, exponent: float
) -> NDArray[np.int64]:
    """Ranks 0 .. cardinality - 1 with density ~ rank^-exponent, by inversion: no table."""
    top = float(cardinality + 1)
    if abs(exponent - 1) < 1e-9:
        drawn = np.exp(uniform * np.log(top))
    else:
        power = 1 - exponent
        drawn = (1 + uniform * (top**power - 1)) ** (1 / power)
    ranks: NDArray[np.int64] = drawn.astype(np.int64)
    ranks -= 1
    np.minimum(ranks, cardinality - 1, out=ranks)  # rounding may reach one past the end
    return ranks


def planted_weights(seed: int, ids: NDArray[np.uint64]) -> NDArray[np.float32]:
    """A weight of mean 0 and variance 1 (uniform) for each key."""
    bits = mix64(ids ^ np.uint64(seed)) >> np.uint64(40)
    weights = bits.astype(np.float32)
    weights *= np.float32(2 * np.sqrt(3) / (1 << 24))
    weights -= np.float32(np.sqrt(3))
    return weights


class Generator:
    """Rows of one part of a synthetic log."""

    def __init__(
        self, slots: Sequence[SyntheticSlot], num_dense: int, seed: int, part: int
    ) -> None:
        self.slots = list(slots)
        self.num_dense = num_dense
        self.seed = seed
        self.part = part
        rng = np.random.Generator(np.random.PCG64(seed_of(seed, 0xDE)))
        # dense columns carry a fifth of the logit's variance, keys the rest
        share = 0.2 if slots and num_dense else 1.0
        direction = rng.standard_normal(num_dense)
        norm = max(float(np.linalg.norm(direction)), 1e-12)
        self._dense_weights = (direction / norm * _PLANTED_SCALE * share**0.5).astype(np.float32)
        slot_share = (0.8 if num_dense else 1.0) / max(len(self.slots), 1)
        self._slot_scale = np.float32(_PLANTED_SCALE * slot_share**0.5)
        values = num_dense + sum(max(1.0, slot.keys_per_sample) for slot in self.slots)
        self.rows_per_block = max(1, min(_STEP, int(_MAX_VALUES / max(1.0, values))))
        self.rows_per_shard = max(1, int(_MAX_SHARD_VALUES / max(1.0, values)))

    def rows(self, number: int, count: int) -> SampleRows:
        """The `number`-th block of this part, its first `count` rows."""
        rng = np.random.Generator(np.random.PCG64(seed_of(self.seed, self.part, number)))
        logit = np.full(count, _BASE_LOGIT, np.float32)
        dense = None
        if self.num_dense:
            dense = rng.standard_normal((count, self.num_dense), np.float32)
            logit += dense @ self._dense_weights
        slots = {}
        for place, slot in enumerate(self.slots):
            slots[slot.name], effect = self._keys(rng, place, slot, count)
            logit += effect
        clicks = rng.random(count, np.float32) < 1 / (1 + np.exp(-logit))
        return SampleRows(slots, dense, clicks.astype(np.float32)[:, None])

    def _keys(
        self, rng: np.random.Generator, place: int, slot: SyntheticSlot, count: int
    ) -> tuple[Keys, NDArray[np.float32]]:
        many = slot.spec.kind == "many"
        offsets = offsets_of(rng.poisson(slot.keys_per_sample, count)) if many else None
        total = count if offsets is None else int(offsets[-1])
        ranks = zipf_ranks(rng.random(total), slot.cardinality, slot.zipf)
        keys = mix64(ranks.view(np.uint64) | np.uint64((place + 1) << 48))
        effects = planted_weights(self.seed, keys)
        effects *= self._slot_scale
        if offsets is None:
            return Keys(keys), effects
        weights = rng.random(total, np.float32) * 2 if slot.weighted else None
        if weights is not None:
            effects *= weights
        sums = np.concatenate([[0.0], np.cumsum(effects, dtype=np.float64)])
        per_row = (sums[offsets[1:]] - sums[offsets[:-1]]) / np.sqrt(slot.keys_per_sample)
        return Keys(keys, offsets, weights), per_row.astype(np.float32)

    def blocks(self, num_rows: int) -> Iterator[SampleRows]:
        """All rows, some at a time."""
        step = self.rows_per_block
        for number, first in enumerate(range(0, num_rows, step)):
            yield self.rows(number, min(step, num_rows - first))


def describe(
    num_rows: int, slots: Sequence[SyntheticSlot], num_dense: int, seed: int, part: int
) -> dict[str, Any]:
    """All that the rows depend on."""
    return {
        "by": "data_prep.synthetic",
        "rows": num_rows,
        "slots": [[s.name, s.cardinality, s.keys_per_sample, s.zipf, s.weighted] for s in slots],
        "dense": num_dense,
        "seed": seed,
        "part": part,
    }


def write_synthetic(
    path: Path | str,
    num_rows: int,
    slots: Sequence[SyntheticSlot],
    num_dense: int = 13,
    seed: int = 0,
    *,
    part: int = 0,
    name: str | None = None,
    rows_per_shard: int = 1 << 20,
    block_rows: int = 4096,
    compression: Compression = "none",
) -> DatasetManifest:
    """Write a dataset; parts of the same seed share the planted weights, not the rows."""
    schema = Schema(
        slots=tuple(slot.spec for slot in slots),
        dense_columns=tuple(f"d{number}" for number in range(num_dense)),
        labels=("click",),
    )
    made = describe(num_rows, slots, num_dense, seed, part)
    generator = Generator(slots, num_dense, seed, part)
    writer = DatasetWriter(
        path,
        schema,
        name=name,
        rows_per_shard=min(rows_per_shard, generator.rows_per_shard),
        block_rows=block_rows,
        compression=compression,
        seed=seed,
        made=made,
    )
    with writer:
        for rows in generator.blocks(num_rows):
            writer.append(rows)
    return writer.manifest


def spread_slots(spec: SyntheticSpec) -> list[SyntheticSlot]:
    """Slots of unlike sizes, as in real logs: from the given cardinality down to a few keys."""
    slots = []
    for number in range(spec.num_slots):
        place = number / max(spec.num_slots - 1, 1)
        cardinality = max(2, round(spec.cardinality ** (1 - 0.75 * place)))
        slots.append(SyntheticSlot(f"s{number}", cardinality, spec.keys_per_sample, spec.zipf))
    return slots


def ensure_synthetic(spec: SyntheticSpec, train_path: Path, test_path: Path | None) -> None:
    """Generate what is not there yet; a part that is whole is left alone.

    A part that was generated from another description is refused: to train on other rows than
    the job describes would be a surprise.
    """
    slots = spread_slots(spec)
    for path, num_rows, part in ((train_path, spec.train_rows, 0), (test_path, spec.test_rows, 1)):
        if path is None:
            continue
        if (path / MANIFEST_FILE).exists():
            made = DatasetManifest.load(path / MANIFEST_FILE).made
            wanted = describe(num_rows, slots, spec.num_dense, spec.seed, part)
            if made.get("by") == wanted["by"] and made != wanted:
                raise UserError(
                    f"{path}: was generated from another `synthetic:` description; delete the "
                    "directory, or choose another one"
                )
            continue
        log.info("generating %s synthetic rows in %s", f"{num_rows:,}", path)
        write_synthetic(path, num_rows, slots, spec.num_dense, spec.seed, part=part)


def main(argv: list[str]) -> int:
    """`heterps prepare synthetic`."""
    from data_prep.command import print_made

    parser = Parser(prog="heterps prepare synthetic", description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="directory to make")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--slots", type=int, default=26)
    parser.add_argument("--cardinality", type=int, default=10_000, help="keys of each slot")
    parser.add_argument("--keys", type=float, default=1.0, help="mean keys per sample")
    parser.add_argument("--zipf", type=float, default=1.1, help="exponent of Zipf's law")
    parser.add_argument("--dense", type=int, default=13, help="dense columns")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", type=int, default=0, help="0 train, 1 test: other rows")
    parser.add_argument("--compression", default="none", choices=("none", "lzf", "lz4", "zstd"))
    given = parser.parse_args(argv)
    slots = [
        SyntheticSlot(f"s{number}", given.cardinality, given.keys, given.zipf)
        for number in range(given.slots)
    ]
    made = write_synthetic(
        given.out,
        given.rows,
        slots,
        given.dense,
        given.seed,
        part=given.part,
        compression=given.compression,
    )
    print_made(given.out, made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
