"""Initial values and dropout are functions of names and numbers, never of rank or cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from heterps_hpc.counter_rng import splitmix64
from heterps_hpc.errors import UserError
from heterps_hpc.model import Layer, dense
from heterps_hpc.models.dropout import CounterDropout, samples
from heterps_hpc.models.dropout import splitmix64 as torch_splitmix64
from heterps_hpc.models.layers import SharedFc, make_module, refuse_batch_coupling


def layer(name: str, make: object) -> Layer:
    return dense(name, make, "a", "b")  # type: ignore[arg-type]


def linear(name: str = "fc1") -> Layer:
    return layer(name, lambda: nn.Linear(4, 3))


def test_initial_values_depend_on_seed_and_layer_name_only() -> None:
    torch.manual_seed(1)
    first = make_module(linear(), 7)
    torch.manual_seed(2)
    torch.rand(5)
    again = make_module(linear(), 7)
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, make_module(linear(), 8).weight)
    assert not torch.equal(first.weight, make_module(linear("fc2"), 7).weight)


def test_float32_starts_from_the_rounded_values_of_float64() -> None:
    single, double = make_module(linear(), 7), make_module(linear(), 7, torch.float64)
    assert double.weight.dtype == torch.float64
    assert torch.equal(single.weight, double.weight.float())


def test_the_global_generator_and_the_default_dtype_are_left_alone() -> None:
    before = torch.get_rng_state()
    make_module(linear(), 7)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_default_dtype() == torch.float32


def test_parameters_that_were_there_before_are_refused() -> None:
    """No seed decides their first values, and on another node they would be others."""
    shared = nn.Linear(4, 3)
    towers = [layer(name, lambda: nn.Sequential(shared, nn.ReLU())) for name in ("user", "item")]
    make_module(towers[0], 7)
    for tower in towers:
        with pytest.raises(UserError, match=f"layer '{tower.name}': .*'0.weight' before.*'user'"):
            make_module(tower, 7)


def test_a_modules_own_initialisation_is_honoured() -> None:
    norm = make_module(layer("norm", lambda: nn.LayerNorm(4)), 7)
    assert torch.equal(norm.weight, torch.ones(4))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.BatchNorm1d(3), "BatchNorm1d mixes.*LayerNorm"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), "'1': Dropout.*CounterDropout"),
        (lambda: nn.LSTM(2, 2, num_layers=2, dropout=0.2), "LSTM has dropout=0.2"),
        (lambda: nn.MultiheadAttention(4, 2, dropout=0.1), "MultiheadAttention"),
        (lambda: nn.RReLU(), "LeakyReLU"),
        (lambda: nn.LazyLinear(3), "Lazy"),
        (lambda: 3, "gave a int"),
    ],
)
def test_modules_that_would_depend_on_the_cut_are_refused(make: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
        make_module(layer("bad", make), 0)


def test_dropout_of_nothing_is_no_dropout() -> None:
    refuse_batch_coupling(nn.Dropout(0.0))


def dropped(ids: torch.Tensor, epoch: int = 0, seed: int = 3, name: str = "fc1") -> torch.Tensor:
    module = make_module(layer(name, lambda: nn.Sequential(nn.Identity(), CounterDropout(0.4))), 0)
    with samples(seed, epoch, ids):
        return module(torch.ones(len(ids), 6))


def test_dropout_belongs_to_the_sample_not_to_the_batch() -> None:
    ids = torch.tensor([5, 900, 17, 3])
    whole = dropped(ids)
    assert torch.equal(whole[2:], dropped(ids[2:]))
    assert torch.equal(whole, torch.cat([dropped(ids[i : i + 1]) for i in range(4)]))


def test_dropout_differs_by_epoch_seed_and_place() -> None:
    ids = torch.arange(50)
    base = dropped(ids)
    assert not torch.equal(base, dropped(ids, epoch=1))
    assert not torch.equal(base, dropped(ids, seed=4))
    assert not torch.equal(base, dropped(ids, name="fc2"))


def test_dropout_keeps_the_mean() -> None:
    values = dropped(torch.arange(20_000))
    assert abs((values == 0).float().mean().item() - 0.4) < 0.01
    torch.testing.assert_close(values.max(), torch.tensor(1 / 0.6))
    columns = (values == 0).float().mean(dim=0)
    assert (columns - 0.4).abs().max() < 0.02


def test_dropout_is_off_in_evaluation_and_refuses_to_guess_in_training() -> None:
    module = CounterDropout(0.4)
    with pytest.raises(RuntimeError, match="samples"):
        module(torch.ones(2, 2))
    assert torch.equal(module.eval()(torch.ones(2, 2)), torch.ones(2, 2))


def test_dropout_of_no_rows() -> None:
    assert dropped(torch.arange(0)).shape == (0, 6)


def test_torch_and_numpy_mix_the_same_bits() -> None:
    values = np.random.default_rng(0).integers(0, 2**64, 1000, dtype=np.uint64)
    mixed = torch_splitmix64(torch.from_numpy(values.view(np.int64))).numpy().view(np.uint64)
    assert np.array_equal(mixed, splitmix64(values))


def test_an_item_and_its_negatives_share_their_weights() -> None:
    shared = SharedFc(4, 3, num_negatives=2)
    item = torch.randn(5, 4)
    own, negatives = shared(item, torch.cat([item, -item], dim=1))
    assert negatives.shape == (5, 6)
    torch.testing.assert_close(negatives[:, :3], own)
