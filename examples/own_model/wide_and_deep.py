"""Wide and deep: every slot is read in two tables, one vector and one single weight per key."""

from torch import nn

from heterps_hpc.model import Lookup, Model, TableSpec, dense, embedding
from heterps_hpc.models.layers import BceLoss, Fc, Logit


class Sum(Logit):
    def forward(self, hidden, wide):
        return super().forward(hidden) + wide.sum(dim=1)


def build(parameters, schema):
    dim, width = parameters.get("dim", 16), parameters.get("width", 128)
    slots = [slot.name for slot in schema.slots]
    deep = [Lookup(slot, f"deep.{slot}", "deep", "mean") for slot in slots]
    wide = [Lookup(slot, f"wide.{slot}", "wide") for slot in slots]
    tables = [TableSpec(each.table, dim if each in deep else 1) for each in deep + wide]
    in_width = dim * len(slots) + len(schema.dense_columns)
    layers = (
        embedding("embedding", deep + wide),
        dense("fc1", lambda: Fc(in_width, width), "deep dense", "fc1"),
        dense("fc2", lambda: nn.Sequential(nn.Linear(width, width), nn.GELU()), "fc1", "fc2"),
        dense("logit", lambda: Sum(width), "fc2 wide", "score"),
        dense("loss", BceLoss, "score label", "loss", kind="loss"),
    )
    return Model("wide_and_deep", layers, tuple(tables))
