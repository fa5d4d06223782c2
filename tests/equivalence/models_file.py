"""Models of the kind users write, for what the four built-in ones do not have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from heterps_hpc.model import Lookup, Model, TableSpec, dense, embedding
from heterps_hpc.models.layers import BceLoss, CounterDropout, Logit


def build(parameters: dict[str, Any], schema: Any) -> Model:
    """One of them, by the parameter `shape`."""
    return {"mixed": mixed, "late": late}[parameters["shape"]](len(schema.dense_columns))


class Mixed(nn.Module):
    """A sequence by attention over its length, a wide part, dropout and a layer norm."""

    def __init__(self, num_dense: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(4))
        self.norm = nn.LayerNorm(12 + num_dense)
        self.fc = nn.Linear(12 + num_dense, 7)
        self.drop = nn.Sequential(nn.Tanh(), CounterDropout(0.3))

    def forward(self, deep: Tensor, sequence: Tensor, length: Tensor, dense: Tensor) -> Tensor:
        vectors = sequence.reshape(len(sequence), 3, 4)
        here = torch.arange(3, device=length.device)[None, :] < length[:, None]
        logits = (vectors @ self.query).masked_fill(~here, -1e9)
        pooled = (torch.softmax(logits, dim=1)[:, :, None] * vectors).sum(dim=1)
        return self.drop(self.fc(self.norm(torch.cat([deep, pooled, dense], dim=1))))


class WideAndDeep(nn.Module):
    """The deep part's logit plus the wide part's sum."""

    def __init__(self) -> None:
        super().__init__()
        self.logit = Logit(7)

    def forward(self, hidden: Tensor, wide: Tensor) -> Tensor:
        return self.logit(hidden) + wide.sum(dim=1)


def mixed(num_dense: int) -> Model:
    """Shared table, a slot in two tables, an unpooled sequence, its length, mean pooling."""
    lookups = (
        Lookup("user", "people", "deep"),
        Lookup("page", "people", "deep", "mean"),
        Lookup("history", "things", "sequence", "none", 3),
        Lookup("user", "wide", "wide"),
        Lookup("tags", "wide", "wide", "mean"),
    )
    return Model(
        "mixed",
        (
            embedding("embedding", lookups),
            dense("mix", lambda: Mixed(num_dense), "deep sequence length:history dense", "hidden"),
            dense("join", WideAndDeep, "hidden wide", "score"),
            dense("loss", BceLoss, "score label", "loss", kind="loss"),
        ),
        (TableSpec("people", 4, 0.3), TableSpec("things", 4, 0.3), TableSpec("wide", 1, 0.3)),
    )


class Join(nn.Module):
    """Two concatenated tensors to a logit."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.logit = Logit(width)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.logit(torch.tanh(torch.cat([left, right], dim=1)))


def late(num_dense: int) -> Model:
    """Dense columns first; the only embedding comes after them."""
    lookups = [Lookup(slot, slot, "embedded") for slot in ("user", "tags", "rare", "item")]
    return Model(
        "late",
        (
            dense("fc", lambda: nn.Linear(num_dense, 6), "dense", "hidden"),
            embedding("embedding", lookups),
            dense("join", lambda: Join(6 + 4 * 5), "hidden embedded", "score"),
            dense("loss", BceLoss, "score label", "loss", kind="loss"),
        ),
        tuple(TableSpec(slot, 5, 0.3) for slot in ("user", "tags", "rare", "item")),
    )
