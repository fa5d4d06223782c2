"""two_embedding: a second, small embedding joins in the middle of the dense layers.

It is the model that shows whether a scheduler and a runtime cope with tables in a later stage.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from heterps_hpc.model import Model, embedding
from heterps_hpc.models.mlp import (
    MlpParameters,
    Positive,
    SchemaLike,
    bce_loss,
    hidden_layers,
    known_slots,
    logit,
    lookups_of,
    tables_of,
)

_PREFIX = "second."


class TwoEmbeddingParameters(MlpParameters):
    """`slots` feed the first embedding and `hidden`, `second_slots` join before `second_hidden`."""

    hidden: Annotated[tuple[Positive, ...], Field(min_length=1)] = (128, 64)
    second_slots: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    second_dim: Positive = 4
    second_hidden: tuple[Positive, ...] = (64, 32)


def build(parameters: dict[str, Any], schema: SchemaLike) -> Model:
    """The model for a data set; by default the second embedding takes the last slot."""
    chosen = TwoEmbeddingParameters.parse(parameters, "model 'two_embedding'")
    everything = known_slots(schema, None, "two_embedding")
    second = known_slots(schema, chosen.second_slots or everything[-1:], "two_embedding")
    rest = [slot for slot in everything if slot not in second] or everything
    first = known_slots(schema, chosen.slots or rest, "two_embedding")
    in_width = len(first) * chosen.embedding_dim + len(schema.dense_columns)
    reads = "embedded dense" if schema.dense_columns else "embedded"
    below = hidden_layers("fc", reads, in_width, chosen.hidden, chosen.dropout)
    join_width = below.width + len(second) * chosen.second_dim
    above = hidden_layers(
        "top", f"{below.writes} joined", join_width, chosen.second_hidden, chosen.dropout
    )
    return Model(
        "two_embedding",
        (
            embedding("embedding", lookups_of(first, "embedded", chosen.pooling)),
            *below.layers,
            embedding("second", lookups_of(second, "joined", chosen.pooling, _PREFIX)),
            *above.layers,
            logit("logit", above),
            bce_loss(),
        ),
        tables_of(first, chosen.embedding_dim, chosen.init_scale)
        + tables_of(second, chosen.second_dim, chosen.init_scale, _PREFIX),
    )
