"""What the commands of all sources do alike: prepare, and report the outcome."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from data_prep.options import PrepareOptions
from data_prep.prepare import prepare
from data_prep.source import Source
from heterps_hpc import format as fmt
from heterps_hpc.dataset.manifest import DatasetManifest
from heterps_hpc.errors import UserError


def run(make_source: Callable[[], Source], options: PrepareOptions) -> int:
    """Prepare; the exit code is 2 for a mistake of the user's."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        manifests = prepare(make_source(), options)
    except UserError as error:
        errors.print(f"heterps: {error}", markup=False)
        return 2
    for part, manifest in manifests.items():
        print_made(options.part_path(part), manifest)
    return 0


def print_made(path: Path, manifest: DatasetManifest) -> None:
    """What was written, in a line."""
    Console(soft_wrap=True, highlight=False).print(
        f"{path}: {fmt.plural(manifest.num_rows, 'row')} in "
        f"{fmt.plural(len(manifest.shards), 'shard')}, {fmt.size(manifest.num_stored_bytes)}",
        markup=False,
    )
