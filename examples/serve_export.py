"""Scores raw rows from `heterps export RUN OUT --format onnx`, without torch or heterps_hpc.

python serve_export.py OUT rows.csv          needs numpy, onnxruntime and xxhash
"""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import xxhash


def mix64(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Served:
    """An exported model: mapped tables, and an ONNX session for the dense layers."""

    def __init__(self, folder: Path) -> None:
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.recipe = self.manifest["data"]["recipe"]
        self.tables = {
            name: [np.load(folder / spec[part], mmap_mode="r") for part in ("keys", "vectors")]
            for name, spec in self.manifest["tables"].items()
        }
        self.dense = onnxruntime.InferenceSession(folder / self.manifest["dense_layers"]["file"])

    def keys(self, slot: dict, field: str) -> np.ndarray:
        """The keys of one field of one row."""
        name = slot["name"] or slot["column"]
        hashes = self.manifest["hashes"]["slots"][name]
        many = slot["many"] or slot["separator"]
        words = [w for w in field.split(slot["separator"]) if w] if many else [field]
        if words == [""]:
            return np.array([hashes["missing"]], np.uint64)
        if slot["integer"]:
            return mix64(np.array(words, np.uint64) + np.uint64(hashes["base"]))
        texts = [xxhash.xxh3_64_intdigest(w.encode(), hashes["base"]) for w in words]
        return np.array(texts, np.uint64)

    def pooled(self, lookup: dict, keys: np.ndarray) -> np.ndarray:
        """One row of an embedding's output; an unknown key counts as zeros."""
        known, vectors = self.tables[lookup["table"]]
        places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        rows = np.where((known[places] == keys)[:, None], vectors[places], 0)
        if lookup["pooling"] == "none":
            out = np.zeros((lookup["max_keys"], vectors.shape[1]), vectors.dtype)
            out[: len(rows)] = rows[: lookup["max_keys"]]
            return out.reshape(-1)
        return rows.sum(0) / (max(1, len(keys)) if lookup["pooling"] == "mean" else 1)

    def score(self, rows: list[dict[str, str]]) -> np.ndarray:
        """The probability of a click, or the model's own score, for each row."""
        inputs: dict[str, list] = {name: [] for name in self.manifest["dense_layers"]["inputs"]}
        for row in rows:
            keys = {
                slot["name"] or slot["column"]: self.keys(slot, row[slot["column"]])
                for slot in self.recipe["slots"]
            }
            parts: dict[str, list] = {}
            for lookup in self.manifest["lookups"]:
                nothing = np.zeros(lookup["width"])
                value = nothing if lookup["derived"] else self.pooled(lookup, keys[lookup["slot"]])
                parts.setdefault(lookup["writes"], []).append(value)
            numbers = [float(row[spec["column"]] or 0) for spec in self.recipe["dense"]]
            logs = [spec["transform"] == "log" for spec in self.recipe["dense"]]
            parts["dense"] = [np.where(logs, np.log1p(np.maximum(numbers, 0)), numbers)]
            for name, column in inputs.items():
                length = name.removeprefix("length:")
                one = len(keys[length]) if name != length else np.concatenate(parts[name])
                column.append(one)
        dtype = self.manifest["dense_layers"]["dtype"]
        nodes = [node.name for node in self.dense.get_inputs()]
        arrays = [np.array(column, dtype) for column in inputs.values()]
        (scores,) = self.dense.run(["score"], dict(zip(nodes, arrays, strict=True)))
        return 1 / (1 + np.exp(-scores)) if self.manifest["score_is_logit"] else scores


if __name__ == "__main__":
    with Path(sys.argv[2]).open(newline="") as file:
        scores = Served(Path(sys.argv[1])).score(list(csv.DictReader(file)))
    sys.stdout.write("\n".join(map(str, scores)) + "\n")
