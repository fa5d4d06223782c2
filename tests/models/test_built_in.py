"""The paper's models and users' own: what they are made of, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_hpc.config import ModelSpec
from heterps_hpc.dataset import Schema, SlotSpec
from heterps_hpc.errors import UserError
from heterps_hpc.model import Model
from heterps_hpc.models import BUILT_IN, build_model
from heterps_hpc.models.dropout import samples
from heterps_hpc.models.layers import make_module

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "own_model"
SCHEMA = Schema(
    slots=(
        SlotSpec(name="user", cardinality=100),
        SlotSpec(name="item", cardinality=50),
        SlotSpec(name="tags", kind="many", cardinality=20, mean_keys=2.5),
    ),
    dense_columns=("age", "hour"),
)
NO_DENSE = SCHEMA.model_copy(update={"dense_columns": ()})


def build(name: str, schema: Any = SCHEMA, **parameters: Any) -> Model:
    return build_model(ModelSpec(name=name, **parameters), schema)


def run(model: Model, num_dense: int, rows: int = 5) -> dict[str, torch.Tensor]:
    """All tensors of a model on made-up embeddings."""
    tensors = {
        "dense": torch.randn(rows, num_dense),
        "label": torch.ones(rows),
        **{f"length:{slot.name}": torch.full((rows,), 2.0) for slot in SCHEMA.slots},
    }
    with samples(0, 0, torch.arange(rows)):
        for layer in model.layers:
            for name in layer.writes if layer.is_embedding else ():
                width = sum(
                    lookup.width(model.table(lookup.table).dim)
                    for lookup in layer.lookups
                    if lookup.writes == name
                )
                tensors[name] = torch.randn(rows, width)
            if not layer.is_embedding:
                outputs = make_module(layer, 1)(*(tensors[name] for name in layer.reads))
                outputs = outputs if isinstance(outputs, tuple) else (outputs,)
                tensors |= dict(zip(layer.writes, outputs, strict=True))
    return tensors


@pytest.mark.parametrize("schema", [SCHEMA, NO_DENSE], ids=["dense", "no dense"])
@pytest.mark.parametrize("name", BUILT_IN)
def test_gives_one_loss_and_one_score_per_sample(name: str, schema: Schema) -> None:
    tensors = run(build(name, schema, dropout=0.1), len(schema.dense_columns))
    assert tensors["loss"].shape == tensors["score"].shape == (5,)
    assert torch.isfinite(tensors["loss"]).all()


@pytest.mark.parametrize("depth", [8, 12, 16, 20])
def test_depth_counts_all_layers_as_the_paper_does(depth: int) -> None:
    model = build("ctrdnn", depth=depth, width=7)
    assert len(model.layers) == depth
    assert [layer.kind for layer in model.layers].count("fc") == depth - 2


def test_ctrdnn_has_a_table_per_slot() -> None:
    model = build("ctrdnn", embedding_dim=6, hidden=[4])
    assert {table.name: table.dim for table in model.tables} == {"user": 6, "item": 6, "tags": 6}
    assert model.layers[1].reads == ("embedded", "dense")


def test_ctrdnn_takes_the_slots_that_are_asked_for() -> None:
    assert build("ctrdnn", slots=["tags"]).data_slots() == ["tags"]


def test_two_embedding_joins_its_second_table_in_the_middle() -> None:
    model = build("two_embedding", second_slots=["item"], second_dim=2)
    kinds = [layer.kind for layer in model.layers]
    assert kinds == ["embedding", "fc", "fc", "embedding", "fc", "fc", "fc", "loss"]
    assert model.table("second.item").dim == 2


def test_matchnet_draws_negatives_of_the_item_in_the_items_own_table() -> None:
    model = build("matchnet", num_negatives=3)
    (negative,) = model.negatives
    assert (negative.source, negative.num_keys) == ("item", 3)
    tables = {lookup.slot: lookup.table for lookup in model.lookups}
    assert tables[negative.name] == tables["item"]
    assert not model.score_is_logit


def test_matchnet_scores_are_cosines_and_beaten_margins_cost_nothing() -> None:
    from heterps_hpc.models.layers import PairwiseHinge

    assert run(build("matchnet"), 2)["score"].abs().max() <= 1 + 1e-6
    hinge = PairwiseHinge(0.3)
    score, negatives = torch.tensor([0.9, 0.5, 0.5]), torch.tensor([[0.1, 0.2], [0.4, 0.1], [1, 1]])
    loss = hinge(score, negatives, torch.tensor([1.0, 1.0, 0.0]))
    torch.testing.assert_close(loss, torch.tensor([0.0, 0.1, 0.0]))


def test_nce_corrects_its_logits_by_the_noise() -> None:
    """s − log(k·q): with zero vectors and biases only the noise's odds are left."""
    from heterps_hpc.models.layers import NceLoss

    model = build("nce", num_noise=5, output_dim=4)  # items: 50 keys
    score = make_module(model.layer("nce_score"), 0)
    true, noise = score(torch.zeros(2, 4), torch.zeros(2, 5), torch.zeros(2, 25))
    expected = -torch.log(torch.tensor(5 / 50))
    torch.testing.assert_close(true, expected.expand(2))
    torch.testing.assert_close(noise, expected.expand(2, 5))
    # an even guess costs log 2 for the truth and for each noise key
    loss = NceLoss()(torch.zeros(2), torch.zeros(2, 5), torch.ones(2))
    torch.testing.assert_close(loss, torch.full((2,), 6 * torch.log(torch.tensor(2.0)).item()))


@pytest.mark.parametrize(
    ("name", "parameters", "says"),
    [
        ("ctrdn", {}, "did you mean 'ctrdnn'"),
        ("ctrdnn", {"hiden": [3]}, "did you mean 'hidden'"),
        ("ctrdnn", {"hidden": [3], "depth": 8}, "not both"),
        ("ctrdnn", {"embedding_dim": 0}, "embedding_dim"),
        ("ctrdnn", {"slots": ["usr"]}, "did you mean 'user'"),
        ("ctrdnn", {"slots": ["user", "user"]}, "twice"),
        ("two_embedding", {"second_slots": ["itm"]}, "did you mean 'item'"),
        ("matchnet", {"item_slot": "tags"}, "several keys"),
        ("nce", {"num_noise": -1}, "num_noise"),
    ],
)
def test_refuses_by_name(name: str, parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        build(name, **parameters)


def test_models_with_items_need_two_slots() -> None:
    one = Schema(slots=(SlotSpec(name="user"),))
    for name in ("matchnet", "nce"):
        with pytest.raises(UserError, match="two slots"):
            build(name, one)


def test_building_a_model_needs_no_torch() -> None:
    """A login node may not have it."""
    code = (
        "import sys; from heterps_hpc.models import build_model, BUILT_IN\n"
        "from heterps_hpc.config import ModelSpec\n"
        "from heterps_hpc.dataset import Schema, SlotSpec\n"
        "s = Schema(slots=(SlotSpec(name='a'), SlotSpec(name='b')))\n"
        "for name in BUILT_IN: build_model(ModelSpec(name=name), s)\n"
        "assert 'torch' not in sys.modules and 'mpi4py' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_own_models_run(file: Path) -> None:
    model = build_model(ModelSpec(file=file), SCHEMA)
    assert run(model, 2)["loss"].shape == (5,)


def test_own_models_are_short() -> None:
    """A user's own model takes 20 lines at most (imports, blank lines and prose not counted)."""
    lines = (EXAMPLES / "wide_and_deep.py").read_text().split('"""')[2].splitlines()
    code = [line for line in lines if line.strip() and not line.startswith(("from", "import"))]
    assert len(code) <= 20


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no such file"),
        ("x = (", "cannot be loaded: SyntaxError"),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
        ("import no_such_module_at_all", "no_such_module_at_all"),
        ("y = 1", "defines no `build"),
        ("def build(p, s):\n    return 3", "returned a int"),
        ("def build(p, s):\n    return p['dim']", r"KeyError: 'dim' \(line 2\)"),
        (
            "from heterps_hpc.model import *\nfrom heterps_hpc.models.layers import BceLoss\n"
            "def build(p, s):\n"
            "    return Model('m', (embedding('e', [Lookup('usr', 't', 'score')]),"
            "dense('loss', BceLoss, 'score label', 'loss')), (TableSpec('t', 1),))",
            "did you mean 'user'",
        ),
    ],
)
def test_own_files_that_are_wrong(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=says) as caught:
        build_model(ModelSpec(file=file), SCHEMA)
    assert "mine.py" in str(caught.value) or "model 'm'" in str(caught.value)


def test_dense_columns_that_are_not_there_are_refused() -> None:
    with pytest.raises(UserError, match="dense columns"):
        build_model(ModelSpec(file=EXAMPLES / "wide_and_deep.py"), NO_DENSE)


def test_noise_is_uniform_over_the_keys_that_it_is_drawn_from() -> None:
    """log(k/N) with N the candidates of the key sample, not all keys of a huge slot."""
    import math

    slots = (
        SlotSpec(name="a", cardinality=10, sampled_keys=10),
        SlotSpec(name="b", cardinality=5_000_000, sampled_keys=60_000),
    )
    model = build_model(ModelSpec(name="nce"), Schema(slots=slots))
    assert not model.score_is_logit  # of data against noise: no click log loss
    make = model.layer("nce_score").make
    assert make is not None
    assert make().log_noise_odds == pytest.approx(math.log(8 / 60_000))
