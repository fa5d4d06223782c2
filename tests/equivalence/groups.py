"""Which ranks of a world run which case."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.equivalence.cases import Case


@dataclass(frozen=True)
class Group:
    """One run of a case, on some ranks of the world."""

    case: Case
    number: int  # of the run, among those of its case
    first_rank: int
    num_ranks: int

    @property
    def ranks(self) -> range:
        """Their numbers in the world."""
        return range(self.first_rank, self.first_rank + self.num_ranks)

    def result(self, out: Path) -> Path:
        """The file that it leaves."""
        return out / f"{self.case.name}.{self.number}.npz"
