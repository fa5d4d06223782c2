"""Times of a pool that cannot be measured, from its data sheet: always marked estimated.

A layer takes the longer of its arithmetic and its memory traffic, plus the overhead of its
kernels (the roofline); an embedding takes the time of its table rows. On a device, rows and
tensors also cross the host's bus.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field

from heterps_hpc.cluster import DeviceKind, Link, Pool
from heterps_hpc.errors import UserError
from heterps_hpc.profile import LayerInfo, PoolTiming, Profile, Timing
from heterps_hpc.validation import Value, nearest

PositiveFloat = Annotated[float, Field(gt=0)]
KERNELS_PER_LAYER = 8  # forward, backward by input and by weight, activation, optimizer
ROW_VISITS = 2  # a row is read in the pull and updated in the push
BYTES_PER_VECTOR = 64.0  # where a profile does not say how many keys a sample has
PARALLEL = 0.98  # α where nobody measured it


class DataSheet(Value):
    """What a maker (or a price list) says about one rank of a node."""

    name: str
    device: DeviceKind
    flops_per_second: PositiveFloat
    bytes_per_second: PositiveFloat
    random_rows_per_second: PositiveFloat
    kernel_seconds: PositiveFloat
    host_bytes_per_second: PositiveFloat | None = None
    link_latency_seconds: PositiveFloat
    link_bytes_per_second: PositiveFloat
    link_ranks: Annotated[int, Field(gt=0)] = 1
    price_per_hour: PositiveFloat
    sources: tuple[str, ...] = ()


def sheet_names() -> list[str]:
    """The shipped data sheets."""
    folder = resources.files("heterps_hpc.profiling.sheets")
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in folder.iterdir()
        if entry.name.endswith("yaml")
    )


def load_sheet(name: str) -> DataSheet:
    """A shipped data sheet by name, or the user's own by path."""
    if name.endswith((".yaml", ".yml", ".json")):
        return DataSheet.load(Path(name))
    if name not in sheet_names():
        raise UserError(
            f"no data sheet {name!r}; {nearest(name, sheet_names())}, or give the path of your own"
        )
    text = (resources.files("heterps_hpc.profiling.sheets") / f"{name}.yaml").read_text("utf-8")
    return DataSheet.parse(yaml.safe_load(text), f"data sheet {name}")


def layer_timing(layer: LayerInfo, pool: str, sheet: DataSheet, batch_size: int) -> Timing:
    """OCT and ODT of one layer on a described pool."""
    move = 0.0
    if layer.is_embedding:
        keys = layer.keys_per_sample or layer.output_bytes / BYTES_PER_VECTOR
        rows = keys * batch_size
        compute = ROW_VISITS * rows / sheet.random_rows_per_second
    else:
        arithmetic = layer.flops * batch_size / sheet.flops_per_second
        touched = 3 * (layer.input_bytes + layer.output_bytes) * batch_size
        traffic = (touched + 6 * layer.weight_bytes_total) / sheet.bytes_per_second
        compute = max(arithmetic, traffic) + KERNELS_PER_LAYER * sheet.kernel_seconds
    if sheet.host_bytes_per_second is not None and layer.is_embedding:
        move = 2 * layer.output_bytes * batch_size / sheet.host_bytes_per_second
    return Timing(
        layer=layer.name,
        pool=pool,
        compute_seconds=compute + sheet.kernel_seconds,
        compute_parallel=PARALLEL,
        move_seconds=move,
        move_parallel=1.0,
        estimated=True,
    )


def _link_share(pool: Pool, sheet: DataSheet) -> float:
    """What one rank gets of its node's link."""
    return sheet.link_bytes_per_second / min(sheet.link_ranks, pool.ranks_per_node)


def profile_from_sheets(profile: Profile, pools: Sequence[Pool]) -> Profile:
    """The times of described pools for the layers of a profile; merge it into that profile."""
    timings: list[Timing] = []
    links: list[Link] = []
    notes: list[str] = []
    measured = list(dict.fromkeys(timing.pool for timing in profile.timings))
    sheets = [load_sheet(pool.data_sheet or "") for pool in pools]
    shares = [_link_share(pool, sheet) for pool, sheet in zip(pools, sheets, strict=True)]
    for index, (pool, sheet) in enumerate(zip(pools, sheets, strict=True)):
        timings += [
            layer_timing(layer, pool.name, sheet, profile.batch_size) for layer in profile.layers
        ]
        # a pair is as fast as its better end: the slower end's own link says how slow that is
        ends = [(pools[i].name, max(shares[index], shares[i])) for i in range(index, len(pools))]
        ends += [(name, shares[index]) for name in measured]
        links += [
            Link(
                pools=(pool.name, other),
                latency_seconds=sheet.link_latency_seconds,
                bytes_per_second=rate,
            )
            for other, rate in ends
        ]
        notes += [f"{pool.name}: data sheet {sheet.name}; {source}" for source in sheet.sources]
    return profile.model_copy(
        update={
            "timings": tuple(timings),
            "pools": tuple(PoolTiming(pool=pool.name, estimated=True) for pool in pools),
            "links": tuple(links),
            "notes": tuple(notes),
        }
    )
