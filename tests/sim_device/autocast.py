"""`torch.autocast("sim")`: the host's rules, so that both round at the same places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# torch/aten/src/ATen/autocast_mode.h: what the host computes in the short type, and what in float32
# (losses). Types of other operators follow from their arguments.
_SHORT = ("linear", "matmul", "mm", "bmm", "addmm", "addbmm", "baddbmm")
_LONG = ("binary_cross_entropy_with_logits", "cross_entropy_loss", "mse_loss", "nll_loss", "prod")
_KEY = "AutocastPrivateUse1"


def register() -> list[torch.library.Library]:
    """Give torch the rules; they hold while the returned objects live."""
    every, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    every.fallback(torch.library.fallthrough_kernel, _KEY)
    for names, dtype in ((_SHORT, torch.bfloat16), (_LONG, torch.float32)):
        for name in names:
            aten.impl(name, _with_arguments(getattr(torch.ops.aten, name).default, dtype), _KEY)
    return [every, aten]


def _with_arguments(operator: Any, dtype: torch.dtype) -> Callable[..., Any]:
    """The operator on arguments of a type."""
    outside = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(outside):
            return operator(*(_convert(value, dtype) for value in args), **kwargs)

    return run


def _convert(value: Any, dtype: torch.dtype) -> Any:
    """As autocast does: float64 stays as it is."""
    is_tensor = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_tensor and value.dtype != torch.float64 else value
