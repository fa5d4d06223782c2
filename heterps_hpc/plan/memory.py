"""What a rank of each stage needs in memory, as the plan counted it."""

from __future__ import annotations

from collections.abc import Sequence

from heterps_hpc.plan.cost_model import Choice, StageTable
from heterps_hpc.validation import Value


class MemoryUse(Value):
    """Bytes of one rank, in the host's memory unless said otherwise."""

    tables: float
    snapshot: float  # copies of rows that change while a checkpoint is written
    dense: float  # weights, optimizer state, activations
    dense_on_device: bool
    limit: float
    device_limit: float | None = None  # None: no device, or unknown

    @property
    def host(self) -> float:
        """Bytes of host memory."""
        return self.tables + self.snapshot + (0.0 if self.dense_on_device else self.dense)


def memory_of(table: StageTable, choices: Sequence[Choice]) -> tuple[MemoryUse, ...]:
    """The memory of one rank, stage by stage."""
    pools = table.problem.pools
    uses = []
    for choice in choices:
        cell = (table.pair(choice), table.column(choice.ranks))
        tables, snapshot, dense = (float(part[cell]) for part in table.memory)
        device = float(pools.device_memory[choice.pool])
        uses.append(
            MemoryUse(
                tables=tables,
                snapshot=snapshot,
                dense=dense,
                dense_on_device=not pools.is_cpu[choice.pool],
                limit=float(pools.memory[choice.pool]),
                device_limit=device if device < float("inf") else None,
            )
        )
    return tuple(uses)
