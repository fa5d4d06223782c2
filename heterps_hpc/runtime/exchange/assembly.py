"""A stage's inputs: which tensors it needs from elsewhere, and how messages make them whole."""

from __future__ import annotations

import torch

from heterps_hpc.model import is_data_tensor
from heterps_hpc.runtime.exchange.channel import Share, is_whole, unpack
from heterps_hpc.runtime.exchange.routes import Route
from heterps_hpc.runtime.stage import StageModules


def external_tensors(modules: StageModules) -> tuple[list[str], set[str]]:
    """What the stage reads but does not write: from other ranks, and from the data set."""
    written: set[str] = set()
    external: dict[str, None] = {}
    data: set[str] = set()
    for layer in modules.layers:
        for name in layer.reads:
            if is_data_tensor(name):
                data.add(name)
            elif name not in written:
                external[name] = None
        written.update(layer.writes)
    return list(external), data


def join_messages(
    name: str,
    width: int,
    count: int,
    messages: list[tuple[Route, Share, torch.Tensor]],
    dtype: torch.dtype,
) -> torch.Tensor:
    """One tensor from the messages that hold parts of it."""
    parts = [
        (route, share, message)
        for route, share, message in messages
        if any(piece.tensor == name for piece in route.pieces)
    ]
    if len(parts) == 1:
        route, share, message = parts[0]
        if is_whole(route, width, (0, count), share):
            return message.detach() if message.dtype == dtype else message.to(dtype)
    adds = any(piece.adds for route, _, _ in parts for piece in route.pieces)
    make = torch.zeros if adds else torch.empty
    value = make(count, width, dtype=dtype)
    for route, share, message in parts:
        unpack(message, route.pieces, name, value[share.first : share.last])
    return value
