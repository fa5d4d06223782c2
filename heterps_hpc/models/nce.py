"""nce: noise-contrastive estimation over a large output embedding.

A context (some slots) predicts a target key out of millions. Instead of a softmax over all of
them, the model learns to separate the true target from a few keys of a known noise distribution.
"""

from __future__ import annotations

import math
from typing import Any

from heterps_hpc.model import LOSS, SCORE, Layer, Lookup, Model, NegativeSlot, TableSpec, dense
from heterps_hpc.model import embedding as embed
from heterps_hpc.models.mlp import (
    MlpParameters,
    Positive,
    SchemaLike,
    fc,
    hidden_layers,
    key_slot,
    known_slots,
    lookups_of,
    tables_of,
)

NOISE = "noise"
_KEY_SAMPLE_SIZE = 65_536  # of a data set, per slot


class NceParameters(MlpParameters):
    """`slots` are the context (all but the target's by default); `target_slot` is predicted."""

    target_slot: str | None = None
    num_noise: Positive = 8
    noise_keys: Positive | None = None
    hidden: tuple[Positive, ...] = (128,)
    output_dim: Positive = 16


def build(parameters: dict[str, Any], schema: SchemaLike) -> Model:
    """The model for a data set; by default the last slot with one key per sample is the target."""
    chosen = NceParameters.parse(parameters, "model 'nce'")
    target = key_slot(schema, chosen.target_slot, "nce", "target_slot")
    others = [slot.name for slot in schema.slots if slot.name != target]
    context = known_slots(schema, chosen.slots or others, "nce")
    reads = "embedded dense" if schema.dense_columns else "embedded"
    in_width = len(context) * chosen.embedding_dim + len(schema.dense_columns)
    below = hidden_layers("fc", reads, in_width, chosen.hidden, chosen.dropout)
    table = f"output.{target}"
    outputs = (
        Lookup(target, table, "target", "sum"),
        Lookup(NOISE, table, "noise", "none", chosen.num_noise),
    )
    return Model(
        "nce",
        (
            embed("embedding", lookups_of(context, "embedded", chosen.pooling)),
            *below.layers,
            fc("context", below.writes, "context", below.width, chosen.output_dim, relu=False),
            embed("output", outputs),
            _score(chosen, _noise_keys(chosen, schema, target)),
            _loss(),
        ),
        (
            *tables_of(context, chosen.embedding_dim, chosen.init_scale),
            TableSpec(table, chosen.output_dim + 1, chosen.init_scale),
        ),
        (NegativeSlot(NOISE, target, chosen.num_noise),),
        score_is_logit=False,  # of data against noise, not of a click: no click log loss
    )


def _noise_keys(chosen: NceParameters, schema: SchemaLike, target: str) -> int:
    """How many keys the noise is uniform over: those of the key sample, not all of the slot's."""
    if chosen.noise_keys is not None:
        return chosen.noise_keys
    slot = next(slot for slot in schema.slots if slot.name == target)
    sampled = int(getattr(slot, "sampled_keys", 0))  # data of an older version does not say
    return max(1, sampled or min(int(slot.cardinality), _KEY_SAMPLE_SIZE))


def _score(chosen: NceParameters, noise_keys: int) -> Layer:
    log_noise_odds = math.log(chosen.num_noise / noise_keys)

    def make() -> Any:
        from heterps_hpc.models.layers import NceScore

        return NceScore(chosen.output_dim, chosen.num_noise, log_noise_odds)

    return dense("nce_score", make, "context target noise", f"{SCORE} noise_score", kind="score")


def _loss() -> Layer:
    def make() -> Any:
        from heterps_hpc.models.layers import NceLoss

        return NceLoss()

    return dense("loss", make, f"{SCORE} noise_score label", LOSS, kind="loss")
