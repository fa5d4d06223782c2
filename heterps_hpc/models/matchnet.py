"""matchnet: a user tower and an item tower, compared by cosine, taught by sampled negatives."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from heterps_hpc.model import LOSS, SCORE, Layer, Lookup, Model, NegativeSlot, TableSpec, dense
from heterps_hpc.model import embedding as embed
from heterps_hpc.models.mlp import (
    MlpParameters,
    Positive,
    PositiveFloat,
    SchemaLike,
    fc,
    hidden_layers,
    key_slot,
    known_slots,
    lookups_of,
    tables_of,
)

NEGATIVES = "negative"


class MatchNetParameters(MlpParameters):
    """`slots` describe the user (all but the item's by default); `item_slot` names the item."""

    item_slot: str | None = None
    num_negatives: Positive = 4
    margin: PositiveFloat = 0.3
    user_hidden: tuple[Positive, ...] = (128,)
    item_hidden: tuple[Positive, ...] = (64,)
    tower_width: Annotated[int, Field(gt=0)] = 32


def build(parameters: dict[str, Any], schema: SchemaLike) -> Model:
    """The model for a data set; by default the last slot with one key per sample is the item."""
    chosen = MatchNetParameters.parse(parameters, "model 'matchnet'")
    item = key_slot(schema, chosen.item_slot, "matchnet", "item_slot")
    others = [slot.name for slot in schema.slots if slot.name != item]
    users = known_slots(schema, chosen.slots or others, "matchnet")
    dim = chosen.embedding_dim
    items = (
        Lookup(item, f"item.{item}", "item", "sum"),
        Lookup(NEGATIVES, f"item.{item}", "negatives", "none", chosen.num_negatives),
    )
    return Model(
        "matchnet",
        (
            embed("user_embedding", lookups_of(users, "user", chosen.pooling)),
            *_user_tower(chosen, len(users) * dim, schema),
            embed("item_embedding", items),
            *_item_tower(chosen, dim),
            _cosine(chosen.num_negatives),
            _hinge(chosen.margin),
        ),
        (
            *tables_of(users, dim, chosen.init_scale),
            TableSpec(f"item.{item}", dim, chosen.init_scale),
        ),
        (NegativeSlot(NEGATIVES, item, chosen.num_negatives),),
        score_is_logit=False,
    )


def _user_tower(chosen: MatchNetParameters, in_width: int, schema: SchemaLike) -> list[Layer]:
    reads = "user dense" if schema.dense_columns else "user"
    in_width += len(schema.dense_columns)
    below = hidden_layers("user_fc", reads, in_width, chosen.user_hidden, chosen.dropout)
    top = fc("user_top", below.writes, "user_top", below.width, chosen.tower_width, relu=False)
    return [*below.layers, top]


def _item_tower(chosen: MatchNetParameters, in_width: int) -> list[Layer]:
    """The same weights for the item and for its negatives, so both travel together."""
    layers = []
    suffix = ""
    for number, width in enumerate([*chosen.item_hidden, chosen.tower_width], start=1):
        last = number > len(chosen.item_hidden)
        name = "_top" if last else f"_fc{number}"
        layers.append(
            dense(
                f"item{name}",
                _shared_fc(in_width, width, chosen.num_negatives, relu=not last),
                f"item{suffix} negatives{suffix}",
                f"item{name} negatives{name}",
            )
        )
        suffix, in_width = name, width
    return layers


def _shared_fc(in_width: int, out_width: int, num_negatives: int, relu: bool) -> Any:
    def make() -> Any:
        from heterps_hpc.models.layers import SharedFc

        return SharedFc(in_width, out_width, num_negatives, relu)

    return make


def _cosine(num_negatives: int) -> Layer:
    def make() -> Any:
        from heterps_hpc.models.layers import CosineScore

        return CosineScore(num_negatives)

    reads = "user_top item_top negatives_top"
    return dense("cosine", make, reads, f"{SCORE} negative_scores", kind="cosine")


def _hinge(margin: float) -> Layer:
    def make() -> Any:
        from heterps_hpc.models.layers import PairwiseHinge

        return PairwiseHinge(margin)

    return dense("loss", make, f"{SCORE} negative_scores label", LOSS, kind="loss")
