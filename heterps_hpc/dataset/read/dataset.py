"""Opens a dataset, and refuses one whose manifest and shards disagree."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from heterps_hpc.dataset.manifest import KEY_SAMPLE_SIZE, MANIFEST_FILE, FileSpec, Manifest
from heterps_hpc.dataset.write.shard_writer import file_checksum
from heterps_hpc.errors import UserError
from heterps_hpc.validation import nearest

Verify = Literal["sizes", "checksums"]


class Dataset:
    """A click log on disk. It holds no open file, so it may cross a fork or be pickled."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def open(cls, path: Path | str, verify: Verify = "sizes") -> Dataset:
        """Read the manifest and compare the shards with it: sizes (cheap), or every byte."""
        path = Path(path)
        if not path.is_dir():
            raise UserError(
                f"{path}: no such dataset; it should be a directory made by `heterps prepare`"
            )
        if not (path / MANIFEST_FILE).exists():
            raise UserError(
                f"{path}: no {MANIFEST_FILE}; the preparation did not finish: run it again, it "
                "continues where it stopped"
            )
        dataset = cls(path, Manifest.load(path / MANIFEST_FILE))
        dataset.check(verify)
        return dataset

    def check(self, verify: Verify) -> None:
        """UserError that names the first file which is not what the manifest says."""
        if verify not in ("sizes", "checksums"):
            raise UserError(f"verify is {verify!r}; choose 'sizes' or 'checksums'")
        for spec in (*self.manifest.shards, self.manifest.key_samples):
            self._check_file(spec, verify)

    def _check_file(self, spec: FileSpec, verify: Verify) -> None:
        path = self.path / spec.file
        remedy = "prepare the dataset again, or copy that file anew"
        try:
            num_bytes = path.stat().st_size
        except FileNotFoundError:
            raise UserError(f"{path}: missing, but the manifest lists it; {remedy}") from None
        if num_bytes != spec.num_bytes:
            raise UserError(
                f"{path}: {num_bytes} bytes, but the manifest says {spec.num_bytes}; {remedy}"
            )
        if verify == "checksums":
            checksum = file_checksum(path)
            if checksum != spec.checksum:
                raise UserError(
                    f"{path}: its checksum is {checksum}, but the manifest says {spec.checksum}: "
                    f"the file has changed; {remedy}"
                )

    def key_sample(self, slot: str) -> NDArray[np.uint64]:
        """Up to 65,536 keys drawn uniformly over the slot's occurrences."""
        names = [spec.name for spec in self.manifest.slots]
        if slot not in names:
            raise UserError(f"{self.path}: no slot {slot!r}; {nearest(slot, names)}")
        path = self.path / self.manifest.key_samples.file
        try:
            with h5py.File(path, "r", locking=False) as file:
                sample: NDArray[np.uint64] = file[slot][:KEY_SAMPLE_SIZE].astype(np.uint64)
                return sample
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise UserError(f"{path}: damaged: {error}; prepare the dataset again") from error
