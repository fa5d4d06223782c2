"""A sequence read key by key: one slot goes unpooled into a GRU of torch."""

import torch
from torch import nn

from heterps_hpc.model import Lookup, Model, TableSpec, dense, embedding
from heterps_hpc.models.layers import BceLoss, Logit

STEPS, DIM = 5, 8


class Encoder(nn.GRU):
    def forward(self, sequence, length):
        states, _ = super().forward(sequence.reshape(len(sequence), STEPS, DIM))
        last = length.long().clamp(1, STEPS) - 1
        return states[torch.arange(len(states)), last]


def build(parameters, schema):
    names = [slot.name for slot in schema.slots]
    history = parameters.get("history", names[-1])
    slots = [name for name in names if name != history]
    pooled = [Lookup(slot, slot, "pooled") for slot in slots]
    whole = Lookup(history, history, "sequence", pooling="none", max_keys=STEPS)
    layers = (
        embedding("embedding", [*pooled, whole]),
        dense(
            "encoder",
            lambda: Encoder(DIM, DIM, batch_first=True),
            f"sequence length:{history}",
            "encoded",
            kind="gru",
        ),
        dense("logit", lambda: Logit(DIM * (len(slots) + 1)), "pooled encoded", "score"),
        dense("loss", BceLoss, "score label", "loss", kind="loss"),
    )
    return Model("sequence", layers, tuple(TableSpec(name, DIM) for name in names))
