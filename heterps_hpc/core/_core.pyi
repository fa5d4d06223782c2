"""Types of the compiled core (src/bindings*.cpp)."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

class Optimizer:
    sgd: ClassVar[Optimizer]
    adagrad_rowwise: ClassVar[Optimizer]
    adagrad: ClassVar[Optimizer]
    adam: ClassVar[Optimizer]

class Init:
    zeros: ClassVar[Init]
    uniform: ClassVar[Init]
    normal: ClassVar[Init]

class Precision:
    full: ClassVar[Precision]
    float16: ClassVar[Precision]
    bfloat16: ClassVar[Precision]

class Config:
    name: str
    seed: int
    dim: int
    float64: bool
    precision: Precision
    optimizer: Optimizer
    lr: float
    eps: float
    weight_decay: float
    beta1: float
    beta2: float
    clip_norm: float
    initial_accumulator: float
    init: Init
    init_scale: float
    num_partitions: int
    threads: int
    admission: int
    sketch_bytes: int
    counters: bool
    show_decay: float
    track_steps: bool
    max_age: int
    evict_by_score: bool
    min_score: float
    show_weight: float
    click_weight: float
    evict_every: int
    skip_nonfinite: bool
    hot_bytes: int
    spill_path: str
    def __init__(self) -> None: ...

class Pulled:
    @property
    def num_samples(self) -> int: ...
    @property
    def open(self) -> bool: ...
    @property
    def absent(self) -> NDArray[np.uint64]: ...

class Cursor: ...
class SpillError(OSError): ...

class Snapshot:
    @property
    def step(self) -> int: ...
    def open(self, partition: int, since: int) -> Cursor: ...
    def read(
        self, cursor: Cursor, max_rows: int
    ) -> (
        tuple[int, NDArray[np.uint64], NDArray[Any], NDArray[Any], dict[str, NDArray[Any]]] | None
    ): ...
    def extra(self, partition: int) -> dict[str, NDArray[Any]]: ...
    def num_rows(self, partition: int) -> int: ...
    def release(self, partition: int) -> None: ...
    def close(self) -> None: ...
    def preserved_bytes(self) -> int: ...

class Table:
    def __init__(self, config: Config, partitions: Sequence[int], isa: str) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def state_dim(self) -> int: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def partitions(self) -> list[int]: ...
    def pull(
        self,
        keys: NDArray[np.uint64],
        offsets: NDArray[np.int64] | None,
        weights: NDArray[Any] | None,
        mean: bool,
        out: NDArray[Any],
        train: bool,
        absent: NDArray[np.uint64] | None,
    ) -> Pulled | None: ...
    def push(
        self,
        handles: Sequence[Pulled],
        gradients: Sequence[NDArray[Any]],
        step: int,
        lr: float | None,
        clicks: NDArray[np.float32] | Sequence[NDArray[np.float32]] | None,
    ) -> dict[str, int]: ...
    def discard(self, handle: Pulled) -> None: ...
    def prefetch(self, keys: NDArray[np.uint64]) -> None: ...
    def read(
        self, keys: NDArray[np.uint64]
    ) -> tuple[NDArray[np.bool_], NDArray[Any], NDArray[Any]]: ...
    def reserve(self, num_rows: int) -> None: ...
    def wait_until_reserved(self) -> None: ...
    def load(
        self,
        partition: int,
        keys: NDArray[np.uint64],
        vectors: NDArray[Any],
        state: NDArray[Any],
        counters: dict[str, NDArray[Any]],
    ) -> None: ...
    def load_extra(self, partition: int, extra: dict[str, NDArray[Any]]) -> None: ...
    def snapshot(self) -> Snapshot: ...
    def stats(self) -> dict[str, int]: ...
    def memory_bytes(self) -> int: ...

def partitions_of(keys: NDArray[np.uint64], num_partitions: int) -> NDArray[np.uint32]: ...
def hash_array(keys: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]: ...
def hash_bytes(text: bytes, seed: int) -> int: ...
