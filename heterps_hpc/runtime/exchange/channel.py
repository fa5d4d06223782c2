"""Buffers of a route at its batch-parallel end, and the copies between messages and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from heterps_hpc.row_ranges import Range
from heterps_hpc.runtime.exchange.routes import Piece, Route
from heterps_hpc.runtime.exchange.transport import Arrival, Exchange, Lane, LocalArrival


@dataclass(frozen=True)
class Share:
    """The rows of one micro-batch that travel on a route: within the replica's own rows."""

    first: int
    last: int

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.last - self.first


class Ring:
    """Host buffers for the messages of one route: so many batches, micro-batches end to end."""

    def __init__(self, depth: int, max_rows: int, width: int, dtype: torch.dtype, pin: bool):
        self._buffers = [
            torch.empty(max_rows, width, dtype=dtype, pin_memory=pin) for _ in range(depth)
        ]

    def blocks(self, batch: int, counts: Sequence[int]) -> list[torch.Tensor]:
        """One block of rows per micro-batch."""
        buffer = self._buffers[batch % len(self._buffers)]
        blocks = []
        first = 0
        for count in counts:
            blocks.append(buffer[first : first + count])
            first += count
        return blocks


class Inlet:
    """Where messages of one route arrive."""

    def __init__(self, exchange: Exchange, lane: Lane, peer: int, ring: Ring) -> None:
        self._exchange = exchange
        self.lane = lane
        self._peer = peer
        self._ring = ring
        self._arrivals: dict[tuple[int, int], Arrival | LocalArrival] = {}

    def post(self, batch: int, counts: Sequence[int]) -> None:
        """Expect all messages of a batch; empty ones are never sent."""
        for micro_batch, block in enumerate(self._ring.blocks(batch, counts)):
            if counts[micro_batch]:
                arrival = self._exchange.post(self.lane, self._peer, block)
                self._arrivals[batch, micro_batch] = arrival

    def take(self, batch: int, micro_batch: int) -> torch.Tensor:
        """The message, once it is here."""
        return self._arrivals.pop((batch, micro_batch)).wait()


def is_whole(route: Route, shapes_width: int, rows: Range, share: Share) -> bool:
    """Whether one message is exactly one tensor: then it needs no copy."""
    return (
        len(route.pieces) == 1
        and route.pieces[0].width == route.width == shapes_width
        and not route.pieces[0].adds
        and (share.first, share.last) == rows
    )


def unpack(message: torch.Tensor, pieces: Sequence[Piece], tensor: str, out: torch.Tensor) -> None:
    """Copy (or add) a message's columns of one tensor into that tensor."""
    for piece in pieces:
        if piece.tensor != tensor:
            continue
        source = message[:, piece.message_column : piece.message_column + piece.width]
        target = out[:, piece.tensor_column : piece.tensor_column + piece.width]
        if piece.adds:
            target.add_(source)
        else:
            target.copy_(source)


def pack(
    tensors: dict[str, torch.Tensor],
    pieces: Sequence[Piece],
    share: Share,
    out: torch.Tensor,
    scale: float = 1.0,
) -> None:
    """Copy columns of tensors, times a factor, into a message."""
    for piece in pieces:
        source = tensors[piece.tensor][share.first : share.last]
        columns = source[:, piece.tensor_column : piece.tensor_column + piece.width]
        target = out[:, piece.message_column : piece.message_column + piece.width]
        target.copy_(columns if scale == 1.0 else columns * scale)
