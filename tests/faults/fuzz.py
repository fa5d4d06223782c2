"""Feeds mutated files to readers: `python -m tests.faults.fuzz checkpoint|dataset FIRST COUNT DIR`.

Runs as a process of its own, with little memory to spare, so that a crash or a huge allocation is
seen for what it is; DIR/current names the mutation at work.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from heterps_hpc.checkpoint import Checkpoint, Contents
from heterps_hpc.checkpoint.manifest import Manifest, content_checksum
from heterps_hpc.checkpoint.shardwriter import structure_checksum
from heterps_hpc.checkpoint.verify import verify
from heterps_hpc.core import Rows, Table, TableConfig
from heterps_hpc.dataset import ColumnSelection, Dataset, Order, Reader
from heterps_hpc.errors import UserError
from tests.checkpoint.made import NUM_PARTITIONS, make_checkpoint
from tests.equivalence.click_log import write_click_log

SPARE_BYTES = 1 << 30
HOSTILE: list[Any] = [
    -1, 0, 1, 2**31, 2**40, 2**63, 10**30, 1e308, None, True, "", "../../etc/passwd", "a/b", "\0",
    "x" * 5000, [], {}, [[[]]], {"a": {"b": 1}}, "nan", [0, 0, 2**61, "0" * 16], "float64",
    "0" * 16,
]  # fmt: skip


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Flip, overwrite, cut, stretch or shuffle some bytes."""
    changed = bytearray(data)
    place = draw.randrange(len(changed))
    length = draw.choice([1, 1, 2, 4, 8, 64, 1024])
    kind = draw.randrange(6)
    if kind == 0:
        changed[place] ^= 1 << draw.randrange(8)
    elif kind == 1:
        changed[place : place + length] = draw.randbytes(length)
    elif kind == 2:
        changed[place : place + length] = draw.choice([b"\0", b"\xff"]) * length
    elif kind == 3:
        del changed[place:]
    elif kind == 4:
        changed[place:place] = draw.randbytes(length)
    else:
        other = draw.randrange(len(changed))
        changed[place : place + length] = changed[other : other + length]
    return bytes(changed)


def mutate_json(text: bytes, draw: random.Random) -> bytes:
    """Put something hostile somewhere into the structure."""
    data = json.loads(text)
    node, parent, key = data, None, None
    while isinstance(node, dict | list) and node and (parent is None or draw.random() < 0.85):
        parent = node
        key = draw.choice(list(node)) if isinstance(node, dict) else draw.randrange(len(node))
        node = node[key]
    assert parent is not None
    action = draw.randrange(4)
    if action == 0:
        del parent[key]
    elif action == 1 and isinstance(parent, list):
        parent.append(node)
    else:
        parent[key] = draw.choice(HOSTILE)
    return json.dumps(data).encode()


def seal(path: Path) -> None:
    """Make all checksums true again, as an attacker would."""
    fields = json.loads((path / "manifest.json").read_bytes())
    for shard in fields["shards"]:
        data = (path / shard["file"]).read_bytes()
        shard["num_bytes"] = len(data)
        for array in shard["arrays"]:
            row_bytes = int(np.prod(array["shape"][1:])) * np.dtype(array["dtype"]).itemsize
            for segment in array["segments"]:
                first = array["offset"] + segment[1] * row_bytes
                piece = data[first : first + segment[2] * row_bytes]
                segment[3] = xxhash.xxh3_64_hexdigest(piece)
    fields.pop("checksum", None)
    manifest = Manifest.parse(fields, "sealed")
    for shard, spec in zip(fields["shards"], manifest.shards, strict=True):
        descriptor = os.open(path / spec.file, os.O_RDONLY)
        shard["structure"] = structure_checksum(descriptor, spec)
        os.close(descriptor)
    (path / "manifest.json").write_text(json.dumps(fields))
    seal_manifest(path / "manifest.json")


def seal_manifest(file: Path) -> None:
    """Make the checksum of a manifest's content true again."""
    data = json.loads(file.read_bytes())
    if isinstance(data, dict):
        data.pop("checksum", None)
        file.write_text(json.dumps(data | {"checksum": content_checksum(data)}))


def use_checkpoint(path: Path) -> None:
    """Everything that is ever done with a checkpoint."""
    checkpoint = Checkpoint.open(path)
    problems = verify(checkpoint).problems
    with Contents(checkpoint) as contents:
        for name in contents.names("dense"):
            contents.dense(name)
        for name, fields in checkpoint.manifest.tables.items():
            if not 0 < fields.dim < 100:
                raise UserError("the runtime compares these with its own tables")
            table = Table(TableConfig(dim=fields.dim, num_partitions=NUM_PARTITIONS))
            table.reserve(contents.num_rows(name, range(NUM_PARTITIONS)))
            for partition in range(NUM_PARTITIONS):
                for columns in contents.rows(name, partition):
                    load(table, partition, columns)
                table.load_extra(partition, contents.extra(name, partition))
    if problems:
        raise UserError(problems[0])


def load(table: Table, partition: int, columns: dict[str, Any]) -> None:
    """As the runtime does, which turns these errors into one that names the checkpoint."""
    try:
        table.load(partition, Rows(columns["keys"], columns["vectors"], columns["state"], columns))
    except (KeyError, ValueError) as error:
        raise UserError(str(error)) from error


def use_dataset(path: Path) -> None:
    """Read a whole epoch."""
    dataset = Dataset.open(path)
    order = Order(dataset, 64)
    want = ColumnSelection(
        slots=tuple(slot.name for slot in dataset.manifest.slots), dense=True, labels=True
    )
    with Reader(dataset, order, want, num_epochs=1) as reader:
        for _ in reader:
            pass


def fuzz(
    path: Path,
    use: Callable[[Path], None],
    seeds: range,
    current: Path,
    expected: tuple[type[Exception], ...],
    sealable: bool,
) -> int:
    """Mutate one file per seed; returns how many were refused."""
    files = {file: file.read_bytes() for file in sorted(path.iterdir()) if file.is_file()}
    refused = 0
    for seed in seeds:
        draw = random.Random(seed)
        file = draw.choice(list(files))
        current.write_text(f"seed {seed}: {file.name}")
        structured = file.suffix == ".json" and draw.random() < 0.7
        file.write_bytes((mutate_json if structured else mutate_bytes)(files[file], draw))
        try:
            if sealable and file.suffix != ".json" and draw.random() < 0.5:
                seal(path)
            elif sealable and structured and draw.random() < 0.8:
                seal_manifest(file)  # or its checksum would be all that is ever tested
            use(path)
        except MemoryError:
            sys.exit(f"seed {seed}, {file.name}: a huge allocation")
        except expected:
            refused += 1
        except Exception as error:
            traceback.print_exc()
            sys.exit(f"seed {seed}, {file.name}: {type(error).__name__} is not an error for users")
        for each, data in files.items():
            each.write_bytes(data)
    return refused


def main(what: str, first: int, count: int, directory: Path) -> None:
    """One process of fuzzing."""
    seeds = range(first, first + count)
    if what == "checkpoint":
        path, use = make_checkpoint(directory, num_rows=12).path, use_checkpoint
        expected: tuple[type[Exception], ...] = (UserError,)
    else:
        path, use = write_click_log(directory / "log").path, use_dataset
        # HDF5's own words are good enough for a file that someone tampered with
        expected = (UserError, OSError, RuntimeError, KeyError, ValueError, TypeError)
    use(path)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, used + SPARE_BYTES))
    refused = fuzz(path, use, seeds, directory / "current", expected, what == "checkpoint")
    print(f"{refused} of {count} refused")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
