"""ctrdnn: an embedding per slot, then fully connected layers down to one click logit."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

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

_DEFAULT_HIDDEN = (256, 128, 64)


class CtrDnnParameters(MlpParameters):
    """`hidden` lists the widths; or `depth` counts all layers, the paper's way, at one `width`."""

    hidden: tuple[Positive, ...] | None = None
    depth: Annotated[int, Field(ge=3)] | None = None
    width: Positive | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.hidden is not None and (self.depth is not None or self.width is not None):
            raise ValueError("give `hidden`, or `depth` and `width`, not both")
        if self.width is not None and self.depth is None:
            raise ValueError("`width` goes with `depth`, the number of layers in all")
        return self

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        """Width of every fully connected layer but the last, which gives the logit."""
        if self.depth is not None:
            # the embedding, the logit and the loss are layers too
            return (self.width or 128,) * (self.depth - 3)
        return _DEFAULT_HIDDEN if self.hidden is None else self.hidden


def build(parameters: dict[str, Any], schema: SchemaLike) -> Model:
    """The model for a data set."""
    chosen = CtrDnnParameters.parse(parameters, "model 'ctrdnn'")
    slots = known_slots(schema, chosen.slots, "ctrdnn")
    dim = chosen.embedding_dim
    in_width = len(slots) * dim + len(schema.dense_columns)
    reads = "embedded dense" if schema.dense_columns else "embedded"
    hidden = hidden_layers("fc", reads, in_width, chosen.hidden_widths, chosen.dropout)
    return Model(
        "ctrdnn",
        (
            embedding("embedding", lookups_of(slots, "embedded", chosen.pooling)),
            *hidden.layers,
            logit("logit", hidden),
            bce_loss(),
        ),
        tables_of(slots, dim, chosen.init_scale),
    )
