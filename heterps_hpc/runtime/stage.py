"""The torch modules of one stage, with all parameters and gradients in two flat buffers.

Flat buffers make the reducer's order of summation fixed, and the optimizer one fused call: all
offered optimizers work element by element, so they give the same for one long tensor as for many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from heterps_hpc.config import DenseOptimizer, Job
from heterps_hpc.model import Model
from heterps_hpc.models.layers import make_module
from heterps_hpc.runtime.device import has_fused
from heterps_hpc.runtime.observer import Observer
from heterps_hpc.runtime.shapes import as_tuple


class StageModules:
    """The dense layers of one stage, in order."""

    def __init__(
        self, model: Model, layers: tuple[str, ...], job: Job, device: torch.device
    ) -> None:
        self.device = device
        self.dtype: torch.dtype = getattr(torch, job.train.dtype)
        self._autocast = job.train.precision == "bf16"
        self.layers = [model.layer(name) for name in layers if not model.layer(name).is_embedding]
        self.modules: dict[str, nn.Module] = {
            layer.name: make_module(layer, job.train.seed, self.dtype).to(self.device)
            for layer in self.layers
        }
        self.parameters, self.gradients = self._flatten()
        self.optimizer = make_optimizer(job.train.dense, self.parameters)
        # their gradients are zero, but the optimizer, which has one long tensor, would decay them
        decays = job.train.dense.weight_decay > 0
        self._frozen = [p for _, p in self.named_parameters() if decays and not p.requires_grad]
        self.observer = Observer()
        self._in_last_backward = False

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters as LAYER.PARAMETER, in a fixed order."""
        for layer, module in self.modules.items():
            for name, parameter in module.named_parameters():
                yield f"{layer}.{name}", parameter

    def named_slices(self) -> dict[str, tuple[int, torch.Size]]:
        """Where each parameter lies in the flat buffers: first element and shape."""
        slices = {}
        first = 0
        for name, parameter in self.named_parameters():
            slices[name] = (first, parameter.shape)
            first += parameter.numel()
        return slices

    def run(self, tensors: dict[str, torch.Tensor]) -> Iterator[str]:
        """Run layer after layer on `tensors`, adding what each writes; yields between layers."""
        for layer in self.layers:
            inputs = [tensors[name] for name in layer.reads]
            self.observer.layer_begins(layer.name)
            with self._precision():
                outputs = as_tuple(self.modules[layer.name](*inputs))
            written = dict(zip(layer.writes, outputs, strict=True))
            self.observer.layer_ends(layer.name, written)
            tensors |= written
            yield layer.name

    def backward(
        self,
        roots: Sequence[torch.Tensor],
        seeds: Sequence[torch.Tensor | None],
        *,
        is_last: bool,
    ) -> None:
        """Add the gradients of a micro-batch, perhaps a batch's last one, to the flat buffer."""
        self._in_last_backward = is_last
        torch.autograd.backward(roots, seeds)
        self.observer.backward_ends()

    def on_complete(self, notify: Callable[[torch.Tensor, int, int], None]) -> None:
        """Call `notify` with the range of each parameter's gradient once a batch's is complete."""

        def hook(first: int, last: int) -> Callable[[torch.Tensor], None]:
            def completed(_: torch.Tensor) -> None:
                if self._in_last_backward:
                    notify(self.gradients, first, last)

            return completed

        slices = self.named_slices()
        for name, parameter in self.named_parameters():
            if not parameter.requires_grad:  # torch calls nobody for it
                continue
            first, shape = slices[name]
            register: Any = parameter.register_post_accumulate_grad_hook
            register(hook(first, first + shape.numel()))

    def set_training(self, training: bool) -> None:
        """Switch modules such as dropout between training and evaluation."""
        for module in self.modules.values():
            module.train(training)

    def clear_gradients(self) -> None:
        """Set all gradients to zero, keeping their memory."""
        self.gradients.zero_()

    def apply(self, lr: float, clip_factor: float | None) -> None:
        """One optimizer step with the gradients in the flat buffer."""
        if self.parameters.numel() == 0:
            return
        if clip_factor is not None and clip_factor < 1.0:
            self.gradients.mul_(clip_factor)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.observer.update_begins()
        before = [parameter.detach().clone() for parameter in self._frozen]
        self.optimizer.step()
        for parameter, value in zip(self._frozen, before, strict=True):
            parameter.data.copy_(value)
        self.observer.update_ends()

    def _precision(self) -> AbstractContextManager[object]:
        if not self._autocast:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _flatten(self) -> tuple[nn.Parameter, torch.Tensor]:
        """Move every parameter and its gradient into two flat buffers; keep views."""
        named = list(self.named_parameters())
        total = sum(parameter.numel() for _, parameter in named)
        flat = torch.empty(total, dtype=self.dtype, device=self.device)
        gradients = torch.zeros_like(flat)
        first = 0
        for _, parameter in named:
            last = first + parameter.numel()
            flat[first:last].copy_(parameter.data.reshape(-1))
            parameter.data = flat[first:last].view(parameter.shape)
            parameter.grad = gradients[first:last].view(parameter.shape)
            first = last
        parameters = nn.Parameter(flat)
        parameters.grad = gradients
        return parameters, gradients


def make_optimizer(spec: DenseOptimizer, flat: nn.Parameter) -> torch.optim.Optimizer:
    """The dense optimizer over one flat tensor; fused where torch can: one pass over memory."""
    lr, decay = spec.lr, spec.weight_decay
    fused = has_fused(spec.optimizer, flat.device)
    if spec.optimizer == "sgd":
        return torch.optim.SGD(
            [flat], lr=lr, momentum=spec.momentum, weight_decay=decay, fused=fused
        )
    if spec.optimizer == "adagrad":
        return torch.optim.Adagrad([flat], lr=lr, eps=spec.eps, weight_decay=decay, fused=fused)
    kind = torch.optim.AdamW if spec.optimizer == "adamw" else torch.optim.Adam
    return kind([flat], lr=lr, eps=spec.eps, betas=spec.betas, weight_decay=decay, fused=fused)
