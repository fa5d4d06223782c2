"""From a layer to a torch module whose first parameters no rank, layout or dtype can change."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from heterps_hpc.errors import UserError
from heterps_hpc.model import Layer
from heterps_hpc.models.layers import CounterDropout
from heterps_hpc.negatives import stream_seed


def make_module(layer: Layer, seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The layer's module, with parameters that are a function of (seed, layer name) only.

    The module's own initialisation runs (a LayerNorm starts at ones, a user's scheme is
    honoured), on a generator seeded for this layer and in float64, then cast: a float32 run
    starts from the rounded values of a float64 run.
    """
    if layer.make is None:
        raise ValueError(f"layer {layer.name!r} reads tables and has no module")
    default = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed("initial", layer.name, seed) >> 1)
        torch.set_default_dtype(torch.float64)
        try:
            module = layer.make()
        finally:
            torch.set_default_dtype(default)
    if not isinstance(module, nn.Module):
        raise UserError(
            f"layer {layer.name!r}: `make` gave a {type(module).__name__}; it must build a "
            "torch.nn.Module, e.g. `lambda: nn.Linear(8, 1)`"
        )
    refuse_batch_coupling(module, layer.name)
    for path, part in module.named_modules():
        if isinstance(part, CounterDropout):
            part.place = f"{layer.name}.{path}"
    return module.to(dtype)


def refuse_batch_coupling(module: nn.Module, layer_name: str = "") -> None:
    """Refuse modules whose result would depend on how a batch is cut into ranks."""
    for path, part in module.named_modules():
        reason = _coupling(part)
        if reason:
            where = f"layer {layer_name!r}" + (f", module {path!r}" if path else "")
            raise UserError(f"{where}: {type(part).__name__} {reason}")
    for name, parameter in module.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise UserError(
                f"layer {layer_name!r}: parameter {name!r} has no shape yet (a Lazy module); give "
                "its input width, which is known from the tables and the schema"
            )


def _coupling(part: nn.Module) -> str | None:
    if isinstance(part, nn.modules.batchnorm._BatchNorm):
        return "mixes the samples of a batch, so its result depends on the cut; use nn.LayerNorm"
    if isinstance(part, nn.modules.instancenorm._InstanceNorm) and part.track_running_stats:
        return "keeps statistics of the batches it saw; set track_running_stats=False"
    if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
        return "draws from the rank's own generator; use heterps_hpc.models.layers.CounterDropout"
    if isinstance(part, nn.RNNBase | nn.MultiheadAttention) and part.dropout > 0:
        return (
            f"has dropout={part.dropout} from the rank's own generator; set 0 and put a "
            "heterps_hpc.models.layers.CounterDropout after it"
        )
    if isinstance(part, nn.RReLU):
        return "draws from the rank's own generator; use nn.LeakyReLU"
    return None
