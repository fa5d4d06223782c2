"""The checkpoints of a run: which are complete, how one comes into being, which are kept.

    checkpoints/000000812/rank-00000-3f9c2a1e.h5     shards first; the last word is unique to a save
    checkpoints/000000812/manifest.json              then the manifest: now it is a checkpoint

A process killed in between leaves a directory without a manifest, which is never read and the
next save sweeps away.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from heterps_hpc.atomic_file import write_atomically
from heterps_hpc.checkpoint.manifest import MANIFEST_FILE, Manifest
from heterps_hpc.checkpoint.shardwriter import sync_directory
from heterps_hpc.errors import UserError
from heterps_hpc.rundir import RunDir, numbered_folders, step_name
from heterps_hpc.rundir import steps_of as steps_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """Steps that had been done."""
        return self.manifest.step

    @classmethod
    def open(cls, path: Path | str) -> Checkpoint:
        """A checkpoint directory, or the newest checkpoint of a run directory."""
        path = Path(path)
        if not (path / MANIFEST_FILE).exists():
            for folder in (RunDir(path).checkpoints, path):
                found = newest(folder)
                if found is not None:
                    return found
            if not path.exists():
                raise UserError(f"{path}: no such checkpoint or run directory")
        return cls(path, Manifest.load(path / MANIFEST_FILE))


def directory_of(checkpoints: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return checkpoints / step_name(step)


def shard_name(rank: int, token: str) -> str:
    """The file of a rank; the token keeps the files of two saves of one step apart."""
    return f"rank-{rank:05d}-{token}.h5"


def newest(checkpoints: Path) -> Checkpoint | None:
    """The newest complete checkpoint."""
    steps = steps_of(checkpoints)
    if not steps:
        return None
    found = Checkpoint.open(directory_of(checkpoints, steps[-1]))
    if found.step != steps[-1]:  # we would resume from it again and again, and keep the wrong ones
        raise UserError(
            f"{found.path}: is the checkpoint of step {found.step}; rename it to "
            f"{step_name(found.step)}, or move it away"
        )
    return found


def publish(directory: Path, manifest: Manifest) -> None:
    """Make the shards in a directory a checkpoint, then sweep out what is not part of it.

    If it fails, the directory is what it was before: a checkpoint of other shards, or none.
    """
    path = directory / MANIFEST_FILE
    before = path.read_text(encoding="utf-8") if path.exists() else None
    try:
        write_atomically(path, manifest.to_json())
        sync_directory(directory)
        sync_directory(directory.parent)
    except BaseException:
        _put_back(path, before)
        raise
    try:
        _sweep(directory, _files_of(manifest))
    except OSError as error:  # it is a checkpoint all the same
        log.warning("%s: cannot remove what is left of another save: %s", directory, error)


def _put_back(path: Path, before: str | None) -> None:
    """The manifest as it was; should even that fail, `discard` spares what it lists."""
    try:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            write_atomically(path, before)
    except OSError as error:
        log.warning("%s: cannot be put back: %s", path, error)


def _files_of(manifest: Manifest) -> set[str]:
    return {MANIFEST_FILE, *(shard.file for shard in manifest.shards)}


def _sweep(directory: Path, kept: set[str]) -> None:
    for path in directory.iterdir():
        if path.name not in kept:
            path.unlink(missing_ok=True)


def keep_last(checkpoints: Path, count: int) -> list[int]:
    """Remove all but the newest complete checkpoints, and torn ones older than the newest."""
    steps = steps_of(checkpoints)
    kept = set(steps[-count:])
    removed = []
    for folder in numbered_folders(checkpoints):
        step = int(folder.name)
        if step in kept or not steps or step > steps[-1]:
            continue
        _remove(folder)
        removed.append(step)
    return removed


def discard(directory: Path, files: list[str]) -> None:
    """Remove the shards of a save that failed; a checkpoint in the same directory stays whole."""
    manifest = directory / MANIFEST_FILE
    if not manifest.exists():
        shutil.rmtree(directory, ignore_errors=True)
        return
    try:
        kept = _files_of(Manifest.load(manifest))
    except UserError as error:
        log.warning("%s; nothing is removed there", error)
        return
    for name in (*files, *(f".{name}.part" for name in files)):
        if name not in kept:
            (directory / name).unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    # the manifest goes first: half a directory must never look complete
    try:
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
        sync_directory(folder)
        shutil.rmtree(folder)
    except OSError as error:
        log.warning("%s: cannot remove the old checkpoint: %s", folder, error)
