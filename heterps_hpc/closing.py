"""The context manager of everything that has a `close`: `with` closes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Closed at the end of a `with`, whatever happens in it."""

    @abstractmethod
    def close(self) -> None:
        """Free what is held; safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
