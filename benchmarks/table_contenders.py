# mypy: disable-error-code="import-not-found"
"""Who is measured: each makes its tables for a workload and does one pull + push of a batch.

Imports are inside the classes: FBGEMM lives in a virtual environment of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.memory_probe import compiled
from benchmarks.table_workloads import SPREAD, TableWorkload

Indices = list[NDArray[np.int64]]
Step = Callable[[Indices], None]


def _on_cache_line(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same values where torch would put them; numpy's large arrays start 16 bytes off."""
    memory = np.empty(matrix.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    placed = memory[start : start + matrix.nbytes].view(matrix.dtype).reshape(matrix.shape)
    placed[...] = matrix
    return placed


def heterps(
    w: TableWorkload, threads: int = 1, at_once: int = 1, precision: Any = None
) -> tuple[Step, Callable[[Indices], Any]]:
    """Our table: 64-bit keys, hashed; threads inside each table, or tables at once."""
    from heterps_hpc.core import Table, TableConfig, ThreadPool

    tables = [
        Table(TableConfig(dim=w.dim, name=f"slot{s}", threads=threads, precision=precision))
        for s in range(w.num_slots)
    ]
    thread_pool = ThreadPool(at_once)
    every = np.arange(w.num_rows).astype(np.uint64) * SPREAD
    for table in tables:
        for keys in np.array_split(every, 50):
            handle = table.pull(keys, out=np.empty((len(keys), w.dim), np.float32))
            assert handle is not None
            table.discard(handle)
    gradient = _on_cache_line(w.gradient())
    out = _on_cache_line(gradient)
    columns = [slice(s * w.dim, (s + 1) * w.dim) for s in range(w.num_slots)]
    offsets = None
    if w.keys_per_slot > 1:
        offsets = np.arange(w.batch_size + 1, dtype=np.int64) * w.keys_per_slot

    def step(batch: Any) -> None:
        handles: list[Any] = [None] * w.num_slots

        def pull(s: int) -> None:
            handles[s] = tables[s].pull(batch[s], offsets, out=out[:, columns[s]])

        def push(s: int) -> None:
            tables[s].push([handles[s]], [gradient[:, columns[s]]], step=0)

        thread_pool.for_each(pull, range(w.num_slots))
        thread_pool.for_each(push, range(w.num_slots))

    return step, lambda batch: [i.astype(np.uint64) * SPREAD for i in batch]


def limit(w: TableWorkload) -> tuple[Step, Callable[[Indices], Any]]:
    """The bare movement of the same bytes (table_limit.cpp)."""
    library = compiled("table_limit.cpp")
    stride = 4 * (w.dim + 1)
    rows = np.zeros(w.num_slots * w.num_rows * stride, np.uint8)  # numpy asks for huge pages
    gradient = _on_cache_line(w.gradient())
    out = _on_cache_line(gradient)
    wide = w.num_slots * w.dim * 4

    def step(batch: Any) -> None:
        for call, matrix in ((library.gather, out), (library.scatter, gradient)):
            for s, index in enumerate(batch):
                call(
                    ctypes.c_void_p(rows.ctypes.data + s * w.num_rows * stride),
                    ctypes.c_int64(stride),
                    ctypes.c_void_p(index.ctypes.data),
                    ctypes.c_int64(w.batch_size),
                    ctypes.c_int64(w.keys_per_slot),
                    ctypes.c_int64(w.dim),
                    ctypes.c_void_p(matrix.ctypes.data + s * w.dim * 4),
                    ctypes.c_int64(wide),
                )

    return step, lambda batch: [i.astype(np.uint32) for i in batch]


def fbgemm(w: TableWorkload) -> tuple[Step, Callable[[Indices], Any]]:
    """FBGEMM's table-batched embedding on the CPU, fused exact row-wise Adagrad."""
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    torch.set_num_threads(1)
    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(w.num_rows, w.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * w.num_slots,
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.01,
        eps=1e-8,
    )
    module.init_embedding_weights_uniform(-0.01, 0.01)
    gradient = torch.from_numpy(_on_cache_line(w.gradient()))
    n = w.batch_size * w.num_slots
    offsets = torch.arange(n + 1, dtype=torch.int64) * w.keys_per_slot

    def step(batch: Any) -> None:
        module(batch, offsets).backward(gradient)

    return step, lambda batch: torch.from_numpy(np.concatenate(batch))


def torch_bags(w: TableWorkload) -> tuple[Step, Callable[[Indices], Any]]:
    """torch.nn.EmbeddingBag with sparse gradients and torch.optim.Adagrad."""
    import torch

    torch.set_num_threads(1)
    bags = [
        torch.nn.EmbeddingBag(w.num_rows, w.dim, mode="sum", sparse=True)
        for _ in range(w.num_slots)
    ]
    optimizer = torch.optim.Adagrad([b.weight for b in bags], lr=0.01, eps=1e-8)
    columns = np.split(w.gradient(), w.num_slots, axis=1)
    gradients = [torch.from_numpy(_on_cache_line(np.ascontiguousarray(g))) for g in columns]
    offsets = torch.arange(w.batch_size, dtype=torch.int64) * w.keys_per_slot

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        pooled = [bag(index, offsets) for bag, index in zip(bags, batch, strict=True)]
        torch.autograd.backward(pooled, gradients)
        optimizer.step()

    return step, lambda batch: [torch.from_numpy(i) for i in batch]


CONTENDERS: dict[str, Callable[[TableWorkload], tuple[Step, Callable[[Indices], Any]]]] = {
    "heterps": heterps,
    "heterps-2": lambda w: heterps(w, at_once=2),
    "heterps-2-inside": lambda w: heterps(w, threads=2),
    "heterps-core1": heterps,
    "heterps-bfloat16": lambda w: heterps(w, precision="bfloat16"),
    "limit": limit,
    "fbgemm": fbgemm,
    "fbgemm-huge": fbgemm,
    "torch": torch_bags,
    "torch-huge": torch_bags,
}
