"""Raw values behind what a dataset stores, where the way back is known.

Keys of integers are a bijection of them, and a logarithm can be undone; the hash of a text cannot.
"""

from __future__ import annotations

import math

import numpy as np

from data_prep.hashing import integer_of, missing_key, rare_key
from heterps_hpc.dataset import DatasetManifest


class Originals:
    """The values that a recipe turned into keys and numbers."""

    def __init__(self, manifest: DatasetManifest) -> None:
        made = manifest.made
        recipe = made.get("recipe") or {}
        folded = (made.get("options") or {}).get("max_keys") is not None
        self._is_criteo = made.get("by") == "data_prep.criteo"
        slots = [slot.name for slot in manifest.slots]
        self._integers = {
            slot.get("name") or slot["column"]
            for slot in recipe.get("slots", ())
            if slot.get("integer")
        }
        if self._is_criteo:
            self._integers = set(slots)
        if folded:
            self._integers = set()
        self._special = {} if folded else {
            slot: {missing_key(slot): "(missing)", rare_key(slot): "(rare)"} for slot in slots
        }  # fmt: skip
        self._logs = {
            column["column"]
            for column in recipe.get("dense", ())
            if column.get("transform") == "log"
        }

    def key(self, slot: str, key: int) -> str | None:
        """The raw value of a key; None if it is not known."""
        special = self._special.get(slot, {}).get(key)
        if special is not None or slot not in self._integers:
            return special
        integer = int(integer_of(slot, np.array([key], np.uint64))[0])
        if integer >= 2**63:
            return None
        return f"{integer:08x}" if self._is_criteo else str(integer)

    def number(self, column: str, value: float) -> float:
        """The raw number of a dense column (0 may have been negative or missing)."""
        return math.expm1(value) if column in self._logs else value
