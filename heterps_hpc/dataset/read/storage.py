"""The shards of a dataset, opened when first needed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from heterps_hpc.dataset.read.dataset import Dataset
from heterps_hpc.dataset.read.shard_file import ShardFile
from heterps_hpc.dataset.shard_schema import Column

_MAX_OPEN = 64


class Storage:
    """The shards of a dataset, opened when first needed; a bounded number stays open."""

    def __init__(self, dataset: Dataset, columns: Sequence[Column]) -> None:
        self._dataset = dataset
        self._columns = columns
        self._open: OrderedDict[int, ShardFile] = OrderedDict()

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return self._dataset.manifest.block_rows

    def shard(self, number: int) -> ShardFile:
        """An open shard."""
        shard = self._open.get(number)
        if shard is None:
            manifest = self._dataset.manifest
            spec = manifest.shards[number]
            path = self._dataset.path / spec.file
            shard = ShardFile(path, spec, self._columns, manifest)
            self._open[number] = shard
            if len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(number)
        return shard

    def close(self) -> None:
        """Close all of them."""
        while self._open:
            self._open.popitem()[1].close()
